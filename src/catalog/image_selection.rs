//! Which of the images that were found are used, and for which instance types.
//! It must not know how images are found, nor what is in them.
//!
//! Source: spec/aws.md §2.3.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::model::instance::Arch;
use crate::model::node_class::resolved::{Image, Variant};

/// Of the images that were found, in the order of the finding, those to be used, in the order in
/// which they are tried: the newest first, then by id.
///
/// For each kind of hardware there is one: what is not deprecated before what is, then the newest,
/// then by name, the last first, then what was found first (spec §10, 9 and 10). A deprecated image
/// is used where there is no other.
pub fn select(found: Vec<Image>) -> Vec<Image> {
    let mut best: BTreeMap<(Arch, Option<Variant>), &Image> = BTreeMap::new();
    for image in &found {
        let variants = image.variants.iter().map(|own| Some(*own));
        let all = image.variants.is_empty().then_some(None);
        for variant in variants.chain(all) {
            let own = best.entry((image.arch, variant)).or_insert(image);
            if merit(image) > merit(own) {
                *own = image;
            }
        }
    }
    let mut chosen: BTreeMap<&str, Image> = BTreeMap::new();
    for ((_, variant), image) in best {
        let own = chosen.entry(&image.id).or_insert_with(|| Image {
            variants: Vec::new(),
            ..image.clone()
        });
        own.variants.extend(variant);
    }
    let mut chosen: Vec<Image> = chosen.into_values().collect();
    chosen.sort_by(|one, other| {
        (Reverse(one.created), &one.id).cmp(&(Reverse(other.created), &other.id))
    });
    chosen
}

fn merit(image: &Image) -> impl Ord {
    (!image.deprecated, image.created, &image.name)
}

/// The image that instances of a type are made from: the first that suits it (spec §10, 8).
pub fn image_of<'a>(images: &'a [Image], shape: &InstanceTypeSpec) -> Option<&'a Image> {
    images.iter().find(|image| suits(image, shape))
}

/// Whether an image is for a type. Karpenter reads that from labels, which a type with graphics
/// processors of two kinds lacks; it gets an image without their drivers there, and not here.
fn suits(image: &Image, shape: &InstanceTypeSpec) -> bool {
    let (gpus, accelerators) = (!shape.gpus.is_empty(), shape.has_accelerators());
    let is_for = |variant: &Variant| match variant {
        Variant::Standard => !gpus && !accelerators,
        Variant::Nvidia => gpus,
        Variant::Neuron => accelerators,
    };
    image.arch == shape.arch && (image.variants.is_empty() || image.variants.iter().any(is_for))
}
