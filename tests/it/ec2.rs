//! EC2 requests and the interpretation of EC2 responses, as tables.

mod fixture;
mod resolve_node_class;
mod templates;
mod requests;
mod selector_terms;
mod errors;
mod images;
mod dry_run;
