//! What every verb needs of the host: its clock and its files, and text that is fit to be shown.
//! It must not know any network, nor what a verb does.

pub(crate) mod clock;
pub(crate) mod text;
pub(crate) mod files;
