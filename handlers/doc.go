// Package handlers answers requests: it decodes with api, calls the domain and
// writes with api. It holds no state, starts nothing and decides nothing about
// jobs; errors it returns are turned into problems by api.
//
// It promises that a GET changes nothing, and that HEAD is GET without a body
// and without waiting. It relies on middleware for the tenant, the keyed
// request and the limit of the body.
package handlers
