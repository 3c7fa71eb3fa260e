//! Instance profiles of roles: one for each role and cluster, made when it is missing.
//! It must not know which node class has which role.
//!
//! Unlike Karpenter's, a profile is named by cluster, region and role alone: a class that changes
//! its role has another profile at once, nothing needs to be protected meanwhile, and classes of
//! one role share one (spec/aws.md §5.8; docs/decisions/018-instance-profiles.md).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_iam::types::Tag;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::ec2::resolve_node_class::{self, ListResult, ResolveError};
use crate::host::clock;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::cluster::Cluster;
use crate::model::labels::REGION;
use crate::model::node_class::resolved::Cause;
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::providers::aws::cleanup_scope::CleanupScope;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::trouble;
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate;

/// What precedes the name of each of our profiles.
const NAME_PREFIX: &str = "outrigger-";

/// How long a profile is taken to be there and right.
const AGAIN: Duration = Duration::from_mins(60);

/// Profiles that were seen to be right, by cluster and role.
#[derive(Debug, Default)]
pub(crate) struct Profiles(BTreeMap<String, Instant>);

impl Profiles {
    /// The name of a role's profile, which is there now.
    async fn of_role(
        &mut self,
        account: &AwsClients,
        cluster: &Cluster,
        role: &str,
    ) -> ListResult<String> {
        let name = name(cluster, role);
        let now = clock::monotonic();
        self.0.retain(|_, at| now.duration_since(*at) < AGAIN);
        if self.0.contains_key(&name) {
            return Ok(name);
        }
        match ensure(account, cluster, &name, bare(role)).await {
            Ok(()) => {
                self.0.insert(name.clone(), now);
                Ok(name)
            }
            Err(fault) if fault.is(&["NoSuchEntity"]) => Err(ResolveError {
                cause: Cause::RoleNotFound,
                text: format!("there is no IAM role {role:?}: {fault}"),
            }),
            Err(fault) => Err(trouble(&fault, "iam")),
        }
    }

    /// The profile of a node class: the one it names, or that of its role, which is made where it
    /// is missing by who acts for the cluster.
    pub(crate) async fn of(
        &mut self,
        account: &AwsClients,
        (own, acts): (&Cluster, bool),
        class: &NodeClass,
    ) -> ListResult<String> {
        match &class.identity {
            Some(NodeIdentity::Profile(name)) => Ok(name.clone()),
            Some(NodeIdentity::Role(role)) if acts => self.of_role(account, own, role).await,
            Some(NodeIdentity::Role(role)) => Ok(name(own, role)),
            None => Err(ResolveError {
                cause: Cause::InstanceProfileNotFound,
                text: "the node class has neither a role nor an instance profile".to_owned(),
            }),
        }
    }

    /// Removes the profiles that are looked after here of roles that no node class names any more,
    /// once no instance has one. One that was made lately may be another host's, whose
    /// configuration is newer.
    pub(crate) async fn collect(
        &mut self,
        account: &AwsClients,
        care: &CleanupScope,
    ) -> Result<usize, AwsError> {
        let clusters = &care.led;
        let mut removed = 0;
        let paths: BTreeSet<String> = clusters
            .iter()
            .filter(|own| roles(own).next().is_some())
            .map(|own| path(own))
            .collect();
        for path in paths {
            let call = account.iam.list_instance_profiles().path_prefix(path);
            let pages = call.into_paginator().send();
            let mut unused = Vec::new();
            paginate::each(account, "ListInstanceProfiles", pages, |page| {
                unused.extend(page.instance_profiles().iter().filter_map(|own| {
                    let named = |it: &Arc<Cluster>| {
                        roles(it).any(|role| name(it, role) == own.instance_profile_name())
                    };
                    let age = clock::now().as_second() - own.create_date().secs();
                    let old = u64::try_from(age).is_ok_and(|age| age > AGAIN.as_secs());
                    let cluster = cluster_in(own.instance_profile_name());
                    let is_ours = cluster.is_some_and(|own| care.is_for(own, spelt));
                    let unused = old && is_ours && !clusters.iter().any(named);
                    let roles = own.roles().iter().map(|role| role.role_name().to_owned());
                    unused.then(|| (own.instance_profile_name().to_owned(), roles.collect()))
                }));
            })
            .await?;
            for (name, roles) in unused {
                removed += usize::from(self.remove(account, &name, roles).await?);
            }
        }
        Ok(removed)
    }

    async fn remove(
        &mut self,
        account: &AwsClients,
        name: &str,
        roles: Vec<String>,
    ) -> Result<bool, AwsError> {
        // Whoever loses his profile loses his credentials.
        let pattern = format!("*/{name}");
        let call = account.ec2.describe_instances();
        let call = call
            .filters(filter("iam-instance-profile.arn", &pattern))
            .max_results(5);
        account.buckets.read.turn().await;
        let used = call.send().await;
        let used = used.map_err(|error| AwsError::new("DescribeInstances", error))?;
        if used
            .reservations()
            .iter()
            .any(|own| !own.instances().is_empty())
        {
            return Ok(false);
        }
        self.0.remove(name);
        for role in roles {
            let call = account.iam.remove_role_from_instance_profile();
            let call = call
                .instance_profile_name(name)
                .role_name(role)
                .send()
                .await;
            gone(call.map_err(|error| AwsError::new("RemoveRoleFromInstanceProfile", error)))?;
        }
        let call = account.iam.delete_instance_profile();
        let call = call.instance_profile_name(name).send().await;
        gone(call.map_err(|error| AwsError::new("DeleteInstanceProfile", error)))?;
        Ok(true)
    }
}

/// The name of a role's profile, and whether it is there. Nothing is made.
pub(crate) async fn look(
    account: &AwsClients,
    cluster: &Cluster,
    role: &str,
) -> Result<(String, bool), AwsError> {
    let name = name(cluster, role);
    let call = account.iam.get_instance_profile();
    match call.instance_profile_name(&name).send().await {
        Ok(_) => Ok((name, true)),
        Err(error) => {
            let fault = AwsError::new("GetInstanceProfile", error);
            match fault.is(&["NoSuchEntity"]) {
                true => Ok((name, false)),
                false => Err(fault),
            }
        }
    }
}

/// What somebody else has removed is as good as removed.
fn gone<T>(answer: Result<T, AwsError>) -> Result<(), AwsError> {
    match answer {
        Err(fault) if !fault.is(&["NoSuchEntity"]) => Err(fault),
        _ => Ok(()),
    }
}

/// The roles of a cluster's node classes.
fn roles(cluster: &Cluster) -> impl Iterator<Item = &str> {
    cluster
        .node_classes
        .iter()
        .filter_map(resolve_node_class::role_of)
}

/// Where the profiles of an installation lie in a region, so that others' are never looked at.
fn path(cluster: &Cluster) -> String {
    format!("/outrigger/{}/{}/", cluster.region, cluster.installation)
}

/// IAM knows a role by its name alone: a path before it only says where it lies (spec/aws.md §10,
/// 82).
fn bare(role: &str) -> &str {
    role.rsplit('/').next().unwrap_or(role)
}

/// IAM allows 128 characters of letters, digits and `+=,.@-_`.
fn name(cluster: &Cluster, role: &str) -> String {
    let short = spelt(cluster.name.as_str());
    let (installation, region) = (&cluster.installation, &cluster.region);
    let text = format!("{installation}\n{}\n{region}\n{role}", cluster.name);
    let digest = Sha256::digest(text);
    let hash: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{NAME_PREFIX}{short}-{hash}")
}

/// How a cluster is spelt in the names of its profiles.
fn spelt(cluster: &str) -> String {
    let known = |c: &char| c.is_ascii_alphanumeric() || "+=,.@-_".contains(*c);
    cluster.chars().filter(known).take(64).collect()
}

/// The cluster of a profile by its name, as it is [`spelt`] there; none of others'.
fn cluster_in(name: &str) -> Option<&str> {
    let (cluster, _) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('-')?;
    Some(cluster)
}

async fn ensure(
    account: &AwsClients,
    cluster: &Cluster,
    name: &str,
    role: &str,
) -> Result<(), AwsError> {
    let iam = &account.iam;
    account.buckets.change.turn().await;
    let known = iam
        .get_instance_profile()
        .instance_profile_name(name)
        .send()
        .await;
    let roles = match known {
        Ok(answer) => {
            let own = answer.instance_profile();
            let roles = own.map(|own| own.roles().to_vec()).unwrap_or_default();
            roles.iter().map(|own| own.role_name().to_owned()).collect()
        }
        Err(error) => {
            let fault = AwsError::new("GetInstanceProfile", error);
            if !fault.is(&["NoSuchEntity"]) {
                return Err(fault);
            }
            create(account, cluster, name).await?;
            Vec::<String>::new()
        }
    };
    if roles.iter().any(|own| own == role) {
        return Ok(());
    }
    for other in roles {
        let call = iam.remove_role_from_instance_profile();
        let call = call
            .instance_profile_name(name)
            .role_name(other)
            .send()
            .await;
        call.map_err(|error| AwsError::new("RemoveRoleFromInstanceProfile", error))?;
    }
    let call = iam.add_role_to_instance_profile();
    let call = call
        .instance_profile_name(name)
        .role_name(role)
        .send()
        .await;
    call.map_err(|error| AwsError::new("AddRoleToInstanceProfile", error))?;
    Ok(())
}

async fn create(account: &AwsClients, cluster: &Cluster, name: &str) -> Result<(), AwsError> {
    let owned = format!("kubernetes.io/cluster/{}", cluster.name);
    let tags = [
        (TAG_INSTALLATION, cluster.installation.as_str()),
        (TAG_CLUSTER, cluster.name.as_str()),
        (REGION, cluster.region.as_str()),
        (owned.as_str(), "owned"),
    ];
    let tag = |(key, value): (&str, &str)| Tag::builder().key(key).value(value).build().ok();
    let call = account
        .iam
        .create_instance_profile()
        .instance_profile_name(name);
    let call = call
        .path(path(cluster))
        .set_tags(Some(tags.into_iter().filter_map(tag).collect()));
    match call.send().await {
        Ok(_) => Ok(()),
        Err(error) => {
            let fault = AwsError::new("CreateInstanceProfile", error);
            // Another host was faster.
            if fault.is(&["EntityAlreadyExists", "EntityAlreadyExistsException"]) {
                return Ok(());
            }
            Err(fault)
        }
    }
}
