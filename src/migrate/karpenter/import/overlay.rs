//! Imports NodeOverlays as overlays.

use super::super::field_tables::OVERLAY;
use super::super::requirements;
use super::{ConvertedBlock, Object};
use crate::migrate::field_mapping::{self, take};

pub(super) fn build(mut object: Object, clusters: &[String]) -> ConvertedBlock {
    let (mut body, mut losses) = object.start(clusters);
    let mut spec = std::mem::take(&mut object.spec);
    let requirements = take(&mut spec, "requirements");
    field_mapping::import(OVERLAY, &mut spec, "spec", &mut body, &mut losses);
    let imported = requirements.map_or(Ok(()), |requirements| {
        requirements::import(&requirements, "spec.requirements", &mut body, &mut losses)
    });
    let mut built = object.built("overlay", body, losses);
    if let Err(error) = imported {
        built.leave_out(error.to_string());
    }
    built
}
