//! Which nodes may leave on purpose, and why the others stay.
//! It must not know how a node is drained or ended.

mod blocked;
mod calm;
mod consolidation;
mod emptiness;
mod foreseen;
mod scene;
mod stuck;
mod weighing;
mod worth;
mod yard;
