//! What is asked of EC2, and what its answers mean, as tables.
//! It must not know how EC2 is reached.

mod scene;
mod find;
mod templates;
mod requests;
mod terms;
mod errors;
mod images;
mod trial;
