//! Imports NodeOverlays as overlays.

use super::super::field_tables::OVERLAY;
use super::super::requirements;
use super::{ConvertedBlock, Object};
use crate::migrate::field_mapping::{self, take_field};

pub(super) fn build_overlay(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut body, mut losses) = object.start_block(clusters);
    let mut spec = std::mem::take(&mut object.spec);
    let requirements = take_field(&mut spec, "requirements");
    field_mapping::import_fields(OVERLAY, &mut spec, "spec", &mut body, &mut losses);
    let imported = requirements.map_or(Ok(()), |requirements| {
        requirements::import_requirements(
            &requirements,
            "spec.requirements",
            &mut body,
            &mut losses,
        )
    });
    let mut built = object.into_block("overlay", body, losses);
    if let Err(error) = imported {
        built.leave_out(error.to_string());
    }
    built
}
