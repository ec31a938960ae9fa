// Package bench measures the gateway against itself in one run: absolute
// figures move with the machine, ratios of one run hardly do. make bench runs
// it; nothing here fails a build.
package bench
