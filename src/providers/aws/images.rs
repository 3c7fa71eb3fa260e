//! Finds images of a region by id, by name and tags, and by SSM parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::types::{ArchitectureValues, Filter, Image as Listed};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::ec2::ami_alias;
use crate::ec2::errors::ErrorClass;
use crate::ec2::resolve_node_class::{ListResult as Answer, ResolveError};
use crate::host::clock;
use crate::model::instance::Arch;
use crate::model::node_class::image::ImageTerm;
use crate::model::node_class::resolved::{Cause, Image, Variant};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate::{self, PAGE};

/// Cache time of a versioned AWS parameter, whose value never changes.
const PINNED: Duration = Duration::from_hours(24);
/// Cache time of `latest` and user parameters, whose value may change.
const MOVING: Duration = Duration::from_mins(30);
/// Search interval of images. A new image with the same name makes nodes drift.
const AGAIN: Duration = Duration::from_mins(10);

/// Maximum number of image ids in one request.
const IDS: usize = 200;

/// Cached results, and their time.
#[derive(Debug, Default)]
pub(crate) struct Images {
    parameters: BTreeMap<String, (Instant, Option<String>)>,
    /// Images by id.
    by_id: BTreeMap<String, (Instant, Option<Image>)>,
    searches: BTreeMap<String, (Instant, Vec<Image>)>,
}

impl Images {
    /// Returns the images of terms, for a Kubernetes version such as `1.33`.
    pub(crate) async fn find(
        &mut self,
        account: &AwsClients,
        terms: &[ImageTerm],
        version: Option<&str>,
    ) -> Answer<Vec<Image>> {
        let mut ids: Vec<(String, Vec<Variant>)> = Vec::new();
        let mut found = Vec::new();
        for term in terms {
            match term {
                ImageTerm::Id(id) => ids.push((id.clone(), Vec::new())),
                ImageTerm::SsmParameter(name) => {
                    let id = self.image_parameter(account, name, MOVING, false).await;
                    let id = id.map_err(|fault| to_resolve_error(&fault, "ssm"))?;
                    ids.extend(id.map(|id| (id, Vec::new())));
                }
                ImageTerm::Alias { family, version: alias_version } => {
                    let Some(version) = version else {
                        return Err(ResolveError {
                            cause: Cause::Unavailable,
                            text: "the Kubernetes version of the cluster is not known yet"
                                .to_owned(),
                        });
                    };
                    let paths = ami_alias::ssm_parameters(*family, alias_version, version);
                    let paths = paths.map_err(|why| ResolveError {
                        cause: Cause::UnsupportedAlias,
                        text: why.to_string(),
                    })?;
                    ids.extend(self.resolve_alias(account, &paths).await?);
                }
                ImageTerm::Search { .. } => {
                    let images = self.search_images(account, term).await;
                    found.extend(images.map_err(|fault| to_resolve_error(&fault, "ec2"))?);
                }
            }
        }
        let by_id = self.by_id(account, &ids).await;
        found.extend(by_id.map_err(|fault| to_resolve_error(&fault, "ec2"))?);
        Ok(found)
    }

    /// Returns the values of the parameters of an alias. Missing parameters are skipped. If all
    /// parameters are missing, the caller reports this. If no parameter can be read, the function
    /// returns an error.
    async fn resolve_alias(
        &mut self,
        account: &AwsClients,
        paths: &[ami_alias::SsmParameter],
    ) -> Answer<Vec<(String, Vec<Variant>)>> {
        let mut ids = Vec::new();
        for path in paths {
            let keep = if path.is_mutable() { MOVING } else { PINNED };
            let id = self.image_parameter(account, &path.path, keep, true).await;
            let id = id.map_err(|fault| to_resolve_error(&fault, "ssm"))?;
            ids.extend(id.map(|id| (id, path.variants.clone())));
        }
        Ok(ids)
    }

    /// Returns the value of a parameter. `None` if it does not exist or contains no image. On read
    /// errors the last image is kept, because nodes would drift otherwise (spec/aws.md §10, 11).
    /// The last image is also kept if a parameter `published` by AWS disappears.
    async fn image_parameter(
        &mut self,
        account: &AwsClients,
        name: &str,
        keep: Duration,
        published: bool,
    ) -> Result<Option<String>, AwsError> {
        let now = clock::monotonic_now();
        let known = self.parameters.get(name).cloned();
        let last = match known {
            Some((read_at, id)) if now.duration_since(read_at) < keep => return Ok(id),
            known => known.and_then(|(_, id)| id),
        };
        account.buckets.read.wait_for_token().await;
        let answer = account.ssm.get_parameter().name(name).send().await;
        let value = match answer.map_aws_error("GetParameter") {
            Ok(answer) => answer.parameter.and_then(|parameter| parameter.value),
            Err(fault) => {
                let is_missing = fault.has_code(&["ParameterNotFound"]);
                match last.filter(|_| published || !is_missing) {
                    Some(image) => {
                        let why = fault.to_failure("ssm").text;
                        tracing::warn!(parameter = name, image, why, "using the last known image");
                        return Ok(Some(image));
                    }
                    None if is_missing => None,
                    None => return Err(fault),
                }
            }
        };
        let id = value.filter(|value| value.starts_with("ami-"));
        self.parameters.insert(name.to_owned(), (now, id.clone()));
        Ok(id)
    }

    async fn by_id(
        &mut self,
        account: &AwsClients,
        ids: &[(String, Vec<Variant>)],
    ) -> Result<Vec<Image>, AwsError> {
        let now = clock::monotonic_now();
        self.by_id.retain(|_, (read_at, _)| now.duration_since(*read_at) < AGAIN);
        let unknown: BTreeSet<&String> =
            ids.iter().map(|(id, _)| id).filter(|id| !self.by_id.contains_key(*id)).collect();
        let unknown: Vec<String> = unknown.into_iter().cloned().collect();
        for chunk in unknown.chunks(IDS) {
            let ids = Filter::builder().name("image-id").set_values(Some(chunk.to_vec()));
            let found = list_images(account, Vec::new(), vec![ids.build()]).await?;
            for id in chunk {
                let image = found.iter().find(|image| image.id == *id);
                self.by_id.insert(id.clone(), (now, image.cloned()));
            }
        }
        let found = ids.iter().filter_map(|(id, variants)| {
            Some(Image { variants: variants.clone(), ..self.by_id.get(id)?.1.clone()? })
        });
        Ok(found.collect())
    }

    async fn search_images(
        &mut self,
        account: &AwsClients,
        term: &ImageTerm,
    ) -> Result<Vec<Image>, AwsError> {
        let ImageTerm::Search { name, owner, tags } = term else {
            return Ok(Vec::new());
        };
        let now = clock::monotonic_now();
        let key = format!("{term:?}");
        self.searches.retain(|_, (read_at, _)| now.duration_since(*read_at) < AGAIN);
        if let Some((_, found)) = self.searches.get(&key) {
            return Ok(found.clone());
        }
        let owners: Vec<String> = match (owner, name) {
            (Some(owner), _) => vec![owner.clone()],
            // Every AWS account can publish images with this name (spec/aws.md §10, 14).
            (None, Some(_)) => vec!["self".to_owned(), "amazon".to_owned()],
            (None, None) => Vec::new(),
        };
        let mut filters: Vec<Filter> = name.iter().map(|name| filter("name", name)).collect();
        filters.extend(tags.iter().map(|(key, value)| match value.as_str() {
            "*" => filter("tag-key", key),
            value => filter(&format!("tag:{key}"), value),
        }));
        let found = list_images(account, owners, filters).await?;
        self.searches.insert(key, (now, found.clone()));
        Ok(found)
    }
}

async fn list_images(
    account: &AwsClients,
    owners: Vec<String>,
    mut filters: Vec<Filter>,
) -> Result<Vec<Image>, AwsError> {
    filters.push(filter("state", "available"));
    let owners = Some(owners).filter(|owners| !owners.is_empty());
    let call = account.ec2.describe_images();
    let call = call.set_owners(owners).set_filters(Some(filters));
    let pages = call.include_deprecated(true).into_paginator();
    let pages = pages.page_size(PAGE).send();
    let now = clock::now();
    paginate::collect(account, "DescribeImages", pages, |page, images| {
        images.extend(page.images().iter().filter_map(|listed| convert_image(listed, now)));
    })
    .await
}

/// Converts an image. `None` for unsupported hardware.
fn convert_image(listed: &Listed, now: Timestamp) -> Option<Image> {
    let arch = match listed.architecture()? {
        ArchitectureValues::X8664 => Arch::Amd64,
        ArchitectureValues::Arm64 => Arch::Arm64,
        _ => return None,
    };
    Some(Image {
        id: listed.image_id()?.to_owned(),
        name: listed.name().unwrap_or_default().to_owned(),
        arch,
        variants: Vec::new(),
        created: parse_timestamp(listed.creation_date()),
        deprecated: parse_timestamp(listed.deprecation_time())
            .is_some_and(|deprecated_at| deprecated_at <= now),
    })
}

/// Parses a time in the response of EC2. `None` if it is missing or invalid.
fn parse_timestamp(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// The condition of a node class after a failed call.
pub(crate) fn to_resolve_error(fault: &AwsError, service: &str) -> ResolveError {
    let failure = fault.to_failure(service);
    let cause = match failure.sort {
        ErrorClass::Denied => Cause::Denied,
        _ => Cause::Unavailable,
    };
    ResolveError { cause, text: failure.text }
}
