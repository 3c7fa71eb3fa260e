//! Images of a region: by id, by name and tags, and by what SSM parameters hold.
//! It must not know which of them is the best one.

use std::collections::BTreeMap;
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
use crate::providers::aws::error::AwsError;
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate::{self, PAGE};

/// How long a parameter of AWS' is believed that names a version: what it holds never changes.
const PINNED: Duration = Duration::from_hours(24);
/// The same where it names the latest, or is the user's own: somebody may change it.
const MOVING: Duration = Duration::from_mins(30);
/// How often images are looked for: a new one with the same name makes nodes drift.
const AGAIN: Duration = Duration::from_mins(10);

/// Ids of images in one request.
const IDS: usize = 200;

/// What was asked for, and when.
#[derive(Debug, Default)]
pub(crate) struct Images {
    parameters: BTreeMap<String, (Instant, Option<String>)>,
    /// Images by id.
    by_id: BTreeMap<String, (Instant, Option<Image>)>,
    searches: BTreeMap<String, (Instant, Vec<Image>)>,
}

impl Images {
    /// The images of some terms, for a cluster of this Kubernetes version, such as `1.33`.
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
                    let held = self.parameter(account, name, (MOVING, false)).await;
                    let held = held.map_err(|fault| trouble(&fault, "ssm"))?;
                    ids.extend(held.map(|id| (id, Vec::new())));
                }
                ImageTerm::Alias {
                    family,
                    version: of,
                } => {
                    let Some(version) = version else {
                        return Err(ResolveError {
                            cause: Cause::Unavailable,
                            text: "the cluster's Kubernetes version is not known yet".to_owned(),
                        });
                    };
                    let paths = ami_alias::parameters(*family, of, version);
                    let paths = paths.map_err(|why| ResolveError {
                        cause: Cause::UnsupportedAlias,
                        text: why.to_string(),
                    })?;
                    ids.extend(self.aliased(account, &paths).await?);
                }
                ImageTerm::Search { .. } => {
                    let more = self.search(account, term).await;
                    found.extend(more.map_err(|fault| trouble(&fault, "ec2"))?);
                }
            }
        }
        let by_id = self.by_id(account, &ids).await;
        found.extend(by_id.map_err(|fault| trouble(&fault, "ec2"))?);
        Ok(found)
    }

    /// What the parameters of an alias hold. One that is not there is left out; where none is there
    /// that is for `find` to say, where none can be read it is a trouble.
    async fn aliased(
        &mut self,
        account: &AwsClients,
        paths: &[ami_alias::SsmParameter],
    ) -> Answer<Vec<(String, Vec<Variant>)>> {
        let mut ids = Vec::new();
        for own in paths {
            let keep = if own.is_mutable() { MOVING } else { PINNED };
            let held = self.parameter(account, &own.path, (keep, true)).await;
            let held = held.map_err(|fault| trouble(&fault, "ssm"))?;
            ids.extend(held.map(|id| (id, own.variants.clone())));
        }
        Ok(ids)
    }

    /// What a parameter holds; none where there is none, or it holds no image. For want of an
    /// answer no image is dropped: nodes that were made from it would drift (spec/aws.md §10, 11).
    /// Nor is it where a parameter that is `published` by AWS is gone from one day to the next.
    async fn parameter(
        &mut self,
        account: &AwsClients,
        name: &str,
        (keep, published): (Duration, bool),
    ) -> Result<Option<String>, AwsError> {
        let now = clock::monotonic();
        let known = self.parameters.get(name).cloned();
        let last = match known {
            Some((at, held)) if now.duration_since(at) < keep => return Ok(held),
            known => known.and_then(|(_, held)| held),
        };
        account.buckets.read.turn().await;
        let held = match account.ssm.get_parameter().name(name).send().await {
            Ok(answer) => answer
                .parameter()
                .and_then(|own| own.value().map(str::to_owned)),
            Err(error) => {
                let fault = AwsError::new("GetParameter", error);
                let gone = fault.is(&["ParameterNotFound"]);
                match last.filter(|_| published || !gone) {
                    Some(image) => {
                        let why = fault.sorted("ssm").text;
                        tracing::warn!(parameter = name, image, why, "its last image is kept");
                        return Ok(Some(image));
                    }
                    None if gone => None,
                    None => return Err(fault),
                }
            }
        };
        let held = held.filter(|id| id.starts_with("ami-"));
        self.parameters.insert(name.to_owned(), (now, held.clone()));
        Ok(held)
    }

    async fn by_id(
        &mut self,
        account: &AwsClients,
        ids: &[(String, Vec<Variant>)],
    ) -> Result<Vec<Image>, AwsError> {
        let now = clock::monotonic();
        self.by_id
            .retain(|_, (at, _)| now.duration_since(*at) < AGAIN);
        let unknown = ids.iter().map(|(id, _)| id);
        let unknown = unknown.filter(|id| !self.by_id.contains_key(*id));
        let mut unknown: Vec<String> = unknown.cloned().collect();
        unknown.sort();
        unknown.dedup();
        for some in unknown.chunks(IDS) {
            let ids = Filter::builder()
                .name("image-id")
                .set_values(Some(some.to_vec()));
            let found = list(account, Vec::new(), vec![ids.build()]).await?;
            for id in some {
                let own = found.iter().find(|own| own.id == *id);
                self.by_id.insert(id.clone(), (now, own.cloned()));
            }
        }
        let known = ids.iter().filter_map(|(id, variants)| {
            let (_, own) = self.by_id.get(id)?;
            let own = own.clone()?;
            let variants = variants.clone();
            Some(Image { variants, ..own })
        });
        Ok(known.collect())
    }

    async fn search(
        &mut self,
        account: &AwsClients,
        term: &ImageTerm,
    ) -> Result<Vec<Image>, AwsError> {
        let ImageTerm::Search { name, owner, tags } = term else {
            return Ok(Vec::new());
        };
        let now = clock::monotonic();
        let key = format!("{term:?}");
        self.searches
            .retain(|_, (at, _)| now.duration_since(*at) < AGAIN);
        if let Some((_, found)) = self.searches.get(&key) {
            return Ok(found.clone());
        }
        let owners: Vec<String> = match (owner, name) {
            (Some(owner), _) => vec![owner.clone()],
            // Anyone may give an image any name (spec/aws.md §10, 14).
            (None, Some(_)) => vec!["self".to_owned(), "amazon".to_owned()],
            (None, None) => Vec::new(),
        };
        let mut filters: Vec<Filter> = name.iter().map(|name| filter("name", name)).collect();
        filters.extend(tags.iter().map(|(key, value)| match value.as_str() {
            "*" => filter("tag-key", key),
            value => filter(&format!("tag:{key}"), value),
        }));
        let found = list(account, owners, filters).await?;
        self.searches.insert(key, (now, found.clone()));
        Ok(found)
    }
}

async fn list(
    account: &AwsClients,
    owners: Vec<String>,
    mut filters: Vec<Filter>,
) -> Result<Vec<Image>, AwsError> {
    filters.push(filter("state", "available"));
    let owners = Some(owners).filter(|owners| !owners.is_empty());
    let call = account.ec2.describe_images();
    let call = call.set_owners(owners).set_filters(Some(filters));
    let pages = call
        .include_deprecated(true)
        .into_paginator()
        .page_size(PAGE)
        .send();
    let now = clock::now();
    let mut all = Vec::new();
    paginate::each(account, "DescribeImages", pages, |page| {
        all.extend(page.images().iter().filter_map(|own| image(own, now)));
    })
    .await?;
    Ok(all)
}

/// An image as ours; none where it is for hardware that no node has.
fn image(own: &Listed, now: Timestamp) -> Option<Image> {
    let time = |text: Option<&str>| text.and_then(|text| text.parse::<Timestamp>().ok());
    let arch = match own.architecture()? {
        ArchitectureValues::X8664 => Arch::Amd64,
        ArchitectureValues::Arm64 => Arch::Arm64,
        _ => return None,
    };
    Some(Image {
        id: own.image_id()?.to_owned(),
        name: own.name().unwrap_or_default().to_owned(),
        arch,
        variants: Vec::new(),
        created: time(own.creation_date()),
        deprecated: time(own.deprecation_time()).is_some_and(|at| at <= now),
    })
}

/// What a failed call makes of a node class.
pub(crate) fn trouble(fault: &AwsError, service: &str) -> ResolveError {
    let failure = fault.sorted(service);
    let cause = match failure.sort {
        ErrorClass::Denied => Cause::Denied,
        _ => Cause::Unavailable,
    };
    ResolveError {
        cause,
        text: failure.text,
    }
}
