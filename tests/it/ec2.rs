//! EC2 requests and the interpretation of EC2 responses, as tables.

mod scene;
mod find;
mod templates;
mod requests;
mod terms;
mod errors;
mod images;
mod trial;
