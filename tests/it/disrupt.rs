//! Nodes that may be voluntarily disrupted, and the blockers of all others.

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
