//! Image resolution while SSM is unavailable.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::advance;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::resolve_node_class::ListResult;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::resolved::{Cause, Image, Variant};
use crate::providers::aws::images::Images;

/// Images by a part of their parameter names, with their architecture.
const PARAMETERS: [(&str, &str, &str); 6] = [
    ("x86_64/standard", "ami-1", "x86_64"),
    ("x86_64/nvidia", "ami-2", "x86_64"),
    ("x86_64/neuron", "ami-3", "x86_64"),
    ("arm64/standard", "ami-4", "arm64"),
    ("arm64/nvidia", "ami-5", "arm64"),
    ("/own", "ami-6", "x86_64"),
];

/// All parameters can be read, except those for Neuron devices and those of the user, which return
/// this error.
fn reply(request: &RecordedRequest, error: Option<&'static str>) -> Reply {
    if request.operation == "DescribeImages" {
        let all = PARAMETERS
            .map(|(_, id, arch)| {
                format!(
                    "<item><imageId>{id}</imageId><architecture>{arch}</architecture><creationDate>\
                 2026-01-01T00:00:00.000Z</creationDate></item>"
                )
            })
            .concat();
        return Reply::Xml(format!("<imagesSet>{all}</imagesSet>"));
    }
    let parameter = PARAMETERS.iter().find(|(part, ..)| request.contains(part));
    let (part, id, _) = parameter.expect("a parameter");
    match error.filter(|_| part.contains("neuron") || part.contains("own")) {
        Some(code) => Reply::Error(code, "no"),
        None => Reply::Json(format!(r#"{{"Parameter":{{"Value":"{id}"}}}}"#)),
    }
}

/// IDs, with a mark for images for Neuron devices.
fn ids(found: ListResult<Vec<Image>>) -> Result<String, Cause> {
    let all = found.map_err(|error| error.cause)?;
    Ok(all
        .into_iter()
        .map(|image| {
            let neuron = image.variants.contains(&Variant::Neuron);
            image.id.replace("ami-", if neuron { "n" } else { "" })
        })
        .collect::<Vec<_>>()
        .join(" "))
}

/// Dropping an image because of a failed request would make its nodes drift, or leave types without
/// an image.
#[tokio::test(start_paused = true)]
async fn images_are_kept_while_ssm_is_unavailable() {
    let error: Arc<Mutex<Option<&'static str>>> = Arc::default();
    let current_error = error.clone();
    let aws = FakeAws::new(move |request| {
        let error = current_error.lock().expect("no panic");
        reply(request, *error)
    });
    let account = aws.account(REGION);
    let alias = [ImageTerm::Alias { family: AmiFamily::Al2023, version: "latest".to_owned() }];
    let terms = [ImageTerm::SsmParameter("/own".to_owned())];
    let gone = Some("ParameterNotFound");
    let all = Ok("1 2 n3 4 5");
    // Each step takes half an hour: the SSM error, the images of AWS, and those of the user.
    let steps = [
        // No image is known yet, and a partial result is not used as a complete one.
        (Some("ThrottlingException"), Err(Cause::Unavailable), Err(Cause::Unavailable)),
        // There is no image for these devices.
        (gone, Ok("1 2 4 5"), Ok("")),
        (None, all, Ok("6")),
        (Some("ThrottlingException"), all, Ok("6")),
        (Some("InternalServerError"), all, Ok("6")),
        (Some("AccessDeniedException"), all, Ok("6")),
        // The user removes the custom image; the images of AWS are published again.
        (gone, all, Ok("")),
        (None, all, Ok("6")),
    ];
    let mut images = Images::default();
    for (step, (now, of_alias, of_user)) in steps.into_iter().enumerate() {
        *error.lock().expect("no panic") = now;
        let found = images.find(&account, &alias, Some("1.33")).await;
        assert_eq!(ids(found), of_alias.map(str::to_owned), "step {step}");
        let found = images.find(&account, &terms, None).await;
        assert_eq!(ids(found), of_user.map(str::to_owned), "step {step}");
        advance(Duration::from_mins(31)).await;
    }
}
