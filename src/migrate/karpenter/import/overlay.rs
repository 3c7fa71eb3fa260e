//! Imports NodeOverlays as overlays.

use super::super::field_tables::OVERLAY;
use super::super::requirements;
use super::{ConvertedBlock, Object};
use crate::migrate::field_mapping::{self, take_field};

pub(super) fn build_overlay(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut spec, mut body, mut losses) = object.start_block(clusters);
    let requirements = take_field(&mut spec, "requirements");
    field_mapping::import_fields(OVERLAY, &mut spec, "spec", &mut body, &mut losses);
    let path = "spec.requirements";
    let imported = requirements::import_requirements(requirements, path, &mut body, &mut losses);
    let mut built = object.into_block("overlay", body, losses);
    if let Err(error) = imported {
        built.comment_out(error.to_string());
    }
    built
}
