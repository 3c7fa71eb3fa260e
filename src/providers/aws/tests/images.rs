//! Image lookup and its caching.

use std::time::Duration;

use tokio::time;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::resolve_node_class::ListResult;
use crate::model::labels::Labels;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::resolved::{Cause, Image, Variant};
use crate::providers::aws::images::Images;

/// Cache duration of found images.
const FOUND: Duration = Duration::from_mins(10);
/// Cache duration of parameters for the latest image and of the user's own parameters.
const LATEST: Duration = Duration::from_mins(30);
/// Cache duration of parameters for a fixed version.
const PINNED: Duration = Duration::from_hours(24);

/// Images of the region: ID, architecture, deprecation time. All are tagged.
const IMAGES: [(&str, &str, &str); 4] = [
    ("ami-1", "x86_64", ""),
    ("ami-2", "arm64", "2020-01-01T00:00:00.000Z"),
    ("ami-3", "x86_64", "2999-01-01T00:00:00.000Z"),
    ("ami-4", "i386", ""),
];

/// All images, or those with the requested IDs.
fn described(request: &RecordedRequest) -> String {
    let by_id = request.contains("Filter.1.Name=image-id");
    let items = IMAGES.iter().filter(|(id, ..)| {
        let value = format!("={id}");
        !by_id || request.body.lines().any(|line| line.ends_with(&value))
    });
    let items = items.map(|(id, arch, deprecated)| {
        format!(
            "<item><imageId>{id}</imageId><name>own</name><architecture>{arch}</architecture>\
             <creationDate>2019-01-01T00:00:00.000Z</creationDate>\
             <deprecationTime>{deprecated}</deprecationTime><tagSet><item>\
             <key>karpenter.k8s.aws/instance-gpu-count</key><value>1</value></item></tagSet>\
             </item>"
        )
    });
    let items: String = items.collect();
    format!("<imagesSet>{items}</imagesSet>")
}

/// An AWS with these parameters: a part of the name, and the value. `no` may not be read.
fn aws(parameters: &'static [(&'static str, &'static str)]) -> FakeAws {
    FakeAws::new(move |request| {
        if request.operation == "DescribeImages" {
            return Reply::Xml(described(request));
        }
        let mut all = parameters.iter();
        let held = all.find(|(name, _)| request.contains(name)).map(|parameter| parameter.1);
        match held {
            Some("no") => Reply::Error("AccessDeniedException", ""),
            Some(id) => Reply::Json(format!(r#"{{"Parameter":{{"Value":"{id}"}}}}"#)),
            None => Reply::Error("ParameterNotFound", ""),
        }
    })
}

async fn find(aws: &FakeAws, terms: &[ImageTerm]) -> ListResult<Vec<Image>> {
    let mut images = Images::default();
    images.find(&aws.account(REGION), terms, Some("1.32")).await
}

/// The values of the request parameters with this name prefix.
fn values<'a>(request: &'a RecordedRequest, name: &str) -> Vec<&'a str> {
    let lines = request.body.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| Some(line.split_once('=')?.1)).collect()
}

fn ids(found: &[Image]) -> Vec<&str> {
    found.iter().map(|image| image.id.as_str()).collect()
}

fn labels(all: &[(&str, &str)]) -> Labels {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn search(name: Option<&str>, owner: Option<&str>, tags: &[(&str, &str)]) -> ImageTerm {
    ImageTerm::Search {
        name: name.map(str::to_owned),
        owner: owner.map(str::to_owned),
        tags: labels(tags),
    }
}

fn alias(family: AmiFamily, version: &str) -> ImageTerm {
    ImageTerm::Alias { family, version: version.to_owned() }
}

/// Terms, and the owners and filters of each resulting request.
#[tokio::test]
async fn images_are_searched_by_id_name_owner_or_tags() {
    let both = [("a", "1"), ("b", "*")];
    type Row = (Vec<ImageTerm>, &'static [(&'static [&'static str], &'static str)]);
    let rows: [Row; 7] = [
        (
            vec![ImageTerm::Id("ami-3".into()), ImageTerm::Id("ami-1".into())],
            &[(&[], "image-id ami-1 ami-3")],
        ),
        (vec![search(Some("own-*"), None, &[])], &[(&["self", "amazon"], "name own-*")]),
        (vec![search(Some("own-*"), Some("me"), &[])], &[(&["me"], "name own-*")]),
        (vec![search(None, Some("me"), &[])], &[(&["me"], "")]),
        (vec![search(None, Some("me"), &both)], &[(&["me"], "tag:a 1 tag-key b")]),
        // A single term requires all its tags; two terms are alternatives.
        (vec![search(None, None, &both)], &[(&[], "tag:a 1 tag-key b")]),
        (
            vec![search(None, None, &both[..1]), search(None, None, &both[1..])],
            &[(&[], "tag:a 1"), (&[], "tag-key b")],
        ),
    ];
    for (terms, expect) in rows {
        let aws = aws(&[]);
        find(&aws, &terms).await.expect("images");
        let requests = aws.take_requests();
        assert_eq!(requests.len(), expect.len(), "{terms:?}");
        for (request, (owners, filters)) in requests.iter().zip(expect) {
            assert_eq!(values(request, "Owner."), *owners, "{terms:?}");
            let expect = [*filters, "state available"].join(" ");
            let filters = values(request, "Filter.").join(" ");
            assert_eq!(filters, expect.trim_start(), "{terms:?}");
            assert!(request.contains("IncludeDeprecated=true"), "{request:?}");
        }
    }
}

/// Only the hardware of launchable nodes counts; tags do not affect it.
#[tokio::test]
async fn image_architecture_and_deprecation_are_read_from_ec2() {
    let found = find(&aws(&[]), &[search(None, Some("me"), &[])]).await;
    let found = found.expect("images");
    let images =
        found.iter().map(|image| (image.id.as_str(), image.arch.as_str(), image.deprecated));
    let expect = [("ami-1", "amd64", false), ("ami-2", "arm64", true), ("ami-3", "amd64", false)];
    assert_eq!(images.collect::<Vec<_>>(), expect);
    assert!(found.iter().all(|image| image.variants.is_empty()));
}

/// Missing parameters are ignored. Access denial is an error, because the parameter might be
/// needed.
#[tokio::test]
async fn alias_resolves_to_images_of_existing_parameters() {
    type Row = (AmiFamily, &'static [(&'static str, &'static str)], &'static [&'static str]);
    let rows: [Row; 7] = [
        (AmiFamily::Al2, &[("amazon-linux-2/", "ami-1")], &["ami-1"]),
        (AmiFamily::Al2023, &[("arm64/standard", "ami-2")], &["ami-2"]),
        (
            AmiFamily::Al2023,
            &[("x86_64/neuron", "ami-3"), ("x86_64/standard", "ami-1")],
            &["ami-1", "ami-3"],
        ),
        (AmiFamily::Bottlerocket, &[("1.32/x86_64", "ami-1")], &["ami-1"]),
        (AmiFamily::Windows2019, &[("Server-2019", "ami-1")], &["ami-1"]),
        (AmiFamily::Windows2022, &[("Server-2022", "ami-1")], &["ami-1"]),
        (AmiFamily::Bottlerocket, &[], &[]),
    ];
    for (family, parameters, expect) in rows {
        let found = find(&aws(parameters), &[alias(family, "latest")]).await;
        assert_eq!(ids(&found.expect("images")), expect, "{family:?}");
    }
    let (both, terms) =
        (aws(&[("amazon-linux-2-gpu", "ami-1")]), [alias(AmiFamily::Al2, "latest")]);
    let variants = &find(&both, &terms).await.expect("images")[0].variants;
    assert_eq!(*variants, [Variant::Neuron, Variant::Nvidia]);
    let aws = aws(&[("arm64/standard", "no"), ("x86_64/standard", "ami-1")]);
    let error = find(&aws, &[alias(AmiFamily::Al2023, "latest")]).await;
    assert_eq!(error.expect_err("access is denied").cause, Cause::Denied);
    let error = find(&aws, &[alias(AmiFamily::Windows2025, "latest")]).await;
    assert_eq!(error.expect_err("too old").cause, Cause::UnsupportedAlias);
    let mut images = Images::default();
    let unknown = [alias(AmiFamily::Al2023, "latest")];
    let error = images.find(&aws.account(REGION), &unknown, None).await;
    assert_eq!(error.expect_err("no version").cause, Cause::Unavailable);
}

#[tokio::test]
async fn custom_ssm_parameter_resolves_to_an_image() {
    let aws = aws(&[("/own/image", "ami-1"), ("/own/text", "hello"), ("/own/secret", "no")]);
    for (name, expect) in [
        ("/own/image", Ok(1)),
        ("/own/text", Ok(0)),
        ("/own/none", Ok(0)),
        ("/own/secret", Err(Cause::Denied)),
    ] {
        let found = find(&aws, &[ImageTerm::SsmParameter(name.to_owned())]).await;
        let found = found.map(|images| images.len()).map_err(|error| error.cause);
        assert_eq!(found, expect, "{name}");
    }
}

/// Number of requests that are sent again after this duration.
async fn repeated_requests(terms: &[ImageTerm], after: Duration) -> usize {
    let aws = aws(&[("recommended", "ami-1"), ("v2025", "ami-1"), ("/own", "ami-1")]);
    let (mut images, account) = (Images::default(), aws.account(REGION));
    let first = images.find(&account, terms, Some("1.32")).await;
    assert!(!aws.take_requests().is_empty());
    time::advance(after).await;
    let second = images.find(&account, terms, Some("1.32")).await;
    assert_eq!(first, second);
    aws.take_requests().len()
}

/// Found images are cached for ten minutes, the latest version for half an hour, and a fixed
/// version for a day. New images are used after these durations.
#[tokio::test(start_paused = true)]
async fn image_lookups_are_cached_for_their_duration() {
    let searches = [
        ImageTerm::Id("ami-1".into()),
        search(Some("own"), None, &[]),
        search(None, None, &[("a", "1")]),
    ];
    for term in searches {
        let term = [term];
        assert_eq!(repeated_requests(&term, FOUND - Duration::from_secs(1)).await, 0, "{term:?}");
        assert_eq!(repeated_requests(&term, FOUND).await, 1, "{term:?}");
    }
    // Terms that differ only in their tags are separate.
    let one = search(None, None, &[("a", "1")]);
    let other = search(None, None, &[("a", "1"), ("b", "1")]);
    assert_eq!(repeated_requests(&[one, other], FOUND).await, 2);
    // The images in the parameters are requested again, too.
    let latest = [alias(AmiFamily::Al2, "latest")];
    let pinned = [alias(AmiFamily::Al2, "v2025")];
    let user_terms = [ImageTerm::SsmParameter("/own".to_owned())];
    for (term, keep, parameters) in
        [(&latest, LATEST, 3), (&pinned, PINNED, 3), (&user_terms, LATEST, 1)]
    {
        assert_eq!(repeated_requests(term, keep - Duration::from_secs(1)).await, 1, "{term:?}");
        assert_eq!(repeated_requests(term, keep).await, 1 + parameters, "{term:?}");
    }
}
