//! A node class after image resolution succeeded or failed.

use jiff::{SignedDuration, Timestamp};
use outrigger::ec2::resolve_node_class::{
    ListResult, RegionResources, ResolveError, resolve_node_class,
};
use outrigger::model::instance::Arch;
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::image::{AmiFamily, ImageTerm};
use outrigger::model::node_class::resolved::{Cause, ConditionKind, Image, NodeClassCondition};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// An image of this day. A leading `!` marks a deprecated one.
fn image(id: &str, day: i64) -> Image {
    Image {
        id: id.trim_start_matches('!').to_owned(),
        name: String::new(),
        arch: Arch::Amd64,
        variants: Vec::new(),
        created: Some(NOW + SignedDuration::from_hours(24 * day)),
        deprecated: id.starts_with('!'),
    }
}

fn search(name: Option<&str>, owner: Option<&str>, tag: Option<(&str, &str)>) -> ImageTerm {
    let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    ImageTerm::Search {
        name: name.map(str::to_owned),
        owner: owner.map(str::to_owned),
        tags: tag.map(pair).into_iter().collect(),
    }
}

/// Returns the selected images, and the condition of the class.
fn select(
    terms: Vec<ImageTerm>,
    images: ListResult<Vec<Image>>,
) -> (Vec<Image>, NodeClassCondition) {
    let class = NodeClass { images: terms, ..NodeClass::default() };
    let profile = Ok("p".to_owned());
    let own = resolve_node_class(&class, &RegionResources::default(), images, profile, NOW);
    let is_own = |own: &&NodeClassCondition| own.kind == ConditionKind::ImagesReady;
    let condition = own.conditions.iter().find(is_own).expect("a condition");
    (own.images.clone(), condition.clone())
}

/// Images with their days, a leading `!` for deprecated ones; the selected image, and whether it is
/// deprecated.
type SelectionCase = (&'static [(&'static str, i64)], &'static str, bool);

/// A deprecated image is selected only if no other exists, and it is marked as such.
#[test]
fn deprecated_image_is_used_only_if_no_other_exists() {
    let rows: [SelectionCase; 4] = [
        (&[("a", 1)], "a", false),
        (&[("!a", 1)], "a", true),
        (&[("!a", 1), ("!b", 2)], "b", true),
        // A non-deprecated image exists again: it is selected, and the mark is gone.
        (&[("!a", 2), ("b", 1)], "b", false),
    ];
    for (all, id, deprecated) in rows {
        let all: Vec<Image> = all.iter().map(|(id, day)| image(id, *day)).collect();
        let (used, condition) = select(vec![search(Some("a*"), None, None)], Ok(all));
        let used: Vec<(&str, bool)> =
            used.iter().map(|own| (own.id.as_str(), own.deprecated)).collect();
        assert_eq!(used, [(id, deprecated)]);
        assert_eq!(condition, NodeClassCondition::met(ConditionKind::ImagesReady));
    }
}

/// The message quotes the terms as in the configuration.
#[test]
fn node_class_without_images_is_unready_and_names_its_terms() {
    let alias = ImageTerm::Alias { family: AmiFamily::Al2023, version: "v20250601".into() };
    let rows = [
        (alias, "alias = \"al2023@v20250601\""),
        (ImageTerm::Id("ami-1".into()), "id = \"ami-1\""),
        (ImageTerm::SsmParameter("/a/b".into()), "ssm_parameter = \"/a/b\""),
        (search(Some("a*"), None, None), "name = \"a*\""),
        (search(None, Some("me"), None), "owner = \"me\""),
        (
            search(Some("a*"), Some("me"), Some(("k", "v"))),
            "no image matches name = \"a*\", owner = \"me\", tags = {\"k\": \"v\"}",
        ),
    ];
    for (term, words) in rows {
        let (used, condition) = select(vec![term], Ok(Vec::new()));
        assert_eq!((used.len(), condition.cause), (0, Some(Cause::ImageNotFound)));
        assert!(condition.message.contains(words), "{}", condition.message);
    }
    for cause in [Cause::UnsupportedAlias, Cause::Denied, Cause::Unavailable] {
        let text = "reported by AWS".to_owned();
        let (used, condition) = select(Vec::new(), Err(ResolveError { cause, text }));
        assert_eq!((used.len(), condition.cause), (0, Some(cause)));
        assert_eq!(condition.message, "reported by AWS");
    }
}
