//! Which nodes may leave on purpose, and why the others may not.
//! It must not know how a node is drained or ended.

mod blocked;
mod emptiness;
mod scene;
