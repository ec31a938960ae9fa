// Package job is the domain: what a job is, the states it moves through, and
// the ports through which it is stored, claimed and settled.
//
//	scheduled ─▶ pending ─▶ processing ─▶ succeeded
//	                ▲           │  │  └──▶ failed
//	                │           │  └─────▶ cancelled
//	                └─ retrying ◀┘
//
// What the package promises, on any repository that passes the contract suite:
//
//   - An accepted job exists together with the idempotency record and the
//     stored response that name it, or none of the three does.
//   - Only the holder of the last lease can change a job that is processing:
//     every such write names the fencing token of its claim.
//   - A job ends once.
//
// What it does not promise: that work outside the database happens once. An
// attempt may have acted on the world before its lease was lost; such work
// needs a receiver that honours the job's id.
package job
