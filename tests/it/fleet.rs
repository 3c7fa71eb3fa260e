//! What clusters share: grants, what is given back, and what one hears of another.
//! It must not know how engines use it; the simulated world tests both together.

mod stage;
mod grants;
mod leaves;
mod random;
