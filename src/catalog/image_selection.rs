//! Selects the image for each instance type from the images found.
//!
//! Source: spec/aws.md §2.3.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::model::instance::Arch;
use crate::model::node_class::resolved::{Image, Variant};

/// Selects images from those found. The result is in the order in which images are tried: newest
/// first, then by ID.
///
/// The result has one image for each kind of hardware. Images that are not deprecated come first,
/// then the newest, then the last by name, then the first found (spec §10, 9 and 10). A deprecated
/// image is used only if there is no other.
pub fn select_images(found: Vec<Image>) -> Vec<Image> {
    let mut best: BTreeMap<(Arch, Option<Variant>), &Image> = BTreeMap::new();
    for image in &found {
        let variants = image.variants.iter().map(|variant| Some(*variant));
        let all = image.variants.is_empty().then_some(None);
        for variant in variants.chain(all) {
            let best_image = best.entry((image.arch, variant)).or_insert(image);
            if image_rank(image) > image_rank(best_image) {
                *best_image = image;
            }
        }
    }
    let mut chosen: BTreeMap<&str, Image> = BTreeMap::new();
    for ((_, variant), image) in best {
        let selected = chosen
            .entry(&image.id)
            .or_insert_with(|| Image { variants: Vec::new(), ..image.clone() });
        selected.variants.extend(variant);
    }
    let mut chosen: Vec<Image> = chosen.into_values().collect();
    chosen.sort_by(|one, other| {
        (Reverse(one.created), &one.id).cmp(&(Reverse(other.created), &other.id))
    });
    chosen
}

fn image_rank(image: &Image) -> impl Ord {
    (!image.deprecated, image.created, &image.name)
}

/// Returns the image for an instance type: the first that is compatible (spec §10, 8).
pub fn image_for<'a>(images: &'a [Image], shape: &InstanceTypeSpec) -> Option<&'a Image> {
    images.iter().find(|image| is_image_compatible(image, shape))
}

/// Returns true if an image is compatible with a type. Karpenter decides compatibility by labels. A
/// type with two kinds of GPU lacks these labels, so Karpenter selects an image without GPU drivers
/// for it.
fn is_image_compatible(image: &Image, shape: &InstanceTypeSpec) -> bool {
    let (gpus, accelerators) = (!shape.gpus.is_empty(), shape.has_accelerators());
    image.arch == shape.arch
        && (image.variants.is_empty()
            || image.variants.iter().any(|variant| match variant {
                Variant::Standard => !gpus && !accelerators,
                Variant::Nvidia => gpus,
                Variant::Neuron => accelerators,
            }))
}
