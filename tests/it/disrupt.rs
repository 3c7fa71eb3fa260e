//! Who may leave, and why the others stay.
//! It must not know how a node is drained or ended.

mod consolidation;
