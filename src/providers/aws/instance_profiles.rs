//! Instance profiles of roles: one per role and cluster, created if missing.
//!
//! In contrast to Karpenter, the profile name depends only on cluster, region and role. A class
//! that changes its role uses a different profile immediately, no profile needs protection during
//! the change, and classes with the same role use the same profile (spec/aws.md §5.8;
//! docs/decisions/018-instance-profiles.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_iam::types::{InstanceProfile, Tag};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::resolve_node_class::{self, ListResult, ResolveError};
use crate::host::clock;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::cluster::Cluster;
use crate::model::labels::REGION;
use crate::model::node_class::resolved::Cause;
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::images::to_resolve_error;
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate;

/// Name prefix of the profiles.
const NAME_PREFIX: &str = "outrigger-";

/// How long a verified profile is trusted.
const AGAIN: Duration = Duration::from_mins(60);

/// Verified profiles, by cluster and role.
#[derive(Debug, Default)]
pub(crate) struct Profiles(BTreeMap<String, Instant>);

impl Profiles {
    /// Returns the name of the profile of a role. The profile exists when this function returns.
    async fn of_role(
        &mut self,
        account: &AwsClients,
        cluster: &Cluster,
        role: &str,
    ) -> ListResult<String> {
        let name = profile_name(cluster, role);
        let now = clock::monotonic_now();
        self.0.retain(|_, verified_at| now.duration_since(*verified_at) < AGAIN);
        if self.0.contains_key(&name) {
            return Ok(name);
        }
        match ensure_profile(account, cluster, &name, name_of_role(role)).await {
            Ok(()) => {
                self.0.insert(name.clone(), now);
                Ok(name)
            }
            Err(fault) if fault.has_code(&["NoSuchEntity"]) => Err(ResolveError {
                cause: Cause::RoleNotFound,
                text: format!("IAM role {role:?} does not exist: {fault}"),
            }),
            Err(fault) => Err(to_resolve_error(&fault, "iam")),
        }
    }

    /// Returns the profile of a node class: the configured one, or the profile of its role. The
    /// leader of the cluster creates a missing profile.
    pub(crate) async fn profile_for(
        &mut self,
        account: &AwsClients,
        cluster: &Cluster,
        can_create: bool,
        class: &NodeClass,
    ) -> ListResult<String> {
        match &class.identity {
            Some(NodeIdentity::Profile(name)) => Ok(name.clone()),
            Some(NodeIdentity::Role(role)) if can_create => {
                self.of_role(account, cluster, role).await
            }
            Some(NodeIdentity::Role(role)) => Ok(profile_name(cluster, role)),
            None => Err(ResolveError {
                cause: Cause::InstanceProfileNotFound,
                text: "the node class has neither a role nor an instance profile".to_owned(),
            }),
        }
    }

    /// Deletes profiles in the cleanup scope whose role no node class uses, once no instance uses
    /// them. A recently created profile is kept, because another host may have a newer
    /// configuration.
    pub(crate) async fn delete_unused(
        &mut self,
        account: &AwsClients,
        scope: &CleanupScope,
    ) -> Result<usize, AwsError> {
        let mut removed = 0;
        let paths: BTreeSet<String> = scope
            .led
            .iter()
            .filter(|cluster| class_roles(cluster).next().is_some())
            .map(|cluster| profile_path(cluster))
            .collect();
        for path in paths {
            let call = account.iam.list_instance_profiles().path_prefix(path);
            let pages = call.into_paginator().send();
            let unused =
                paginate::collect(account, "ListInstanceProfiles", pages, |page, unused| {
                    let profiles = page.instance_profiles().iter();
                    unused.extend(profiles.filter(|it| is_unused(it, scope)).cloned());
                });
            for profile in unused.await? {
                removed += usize::from(self.delete_profile(account, &profile).await?);
            }
        }
        Ok(removed)
    }

    async fn delete_profile(
        &mut self,
        account: &AwsClients,
        profile: &InstanceProfile,
    ) -> Result<bool, AwsError> {
        let name = profile.instance_profile_name();
        // An instance that loses its profile loses its credentials.
        let pattern = format!("*/{name}");
        let call = account.ec2.describe_instances();
        let call = call.filters(filter("iam-instance-profile.arn", &pattern)).max_results(5);
        account.buckets.read.wait_for_token().await;
        let users = call.send().await;
        let users = users.map_aws_error("DescribeInstances")?;
        if users.reservations().iter().any(|it| !it.instances().is_empty()) {
            return Ok(false);
        }
        self.0.remove(name);
        for role in profile.roles() {
            ignore_missing(remove_role(account, name, role.role_name()).await)?;
        }
        let call = account.iam.delete_instance_profile();
        let call = call.instance_profile_name(name).send().await;
        ignore_missing(call.map_aws_error("DeleteInstanceProfile"))?;
        Ok(true)
    }
}

/// Returns the profile name of a role, and whether it exists. Creates nothing.
pub(crate) async fn find_profile(
    account: &AwsClients,
    cluster: &Cluster,
    role: &str,
) -> Result<(String, bool), AwsError> {
    let name = profile_name(cluster, role);
    let call = account.iam.get_instance_profile();
    let answer = call.instance_profile_name(&name).send().await;
    match answer.map_aws_error("GetInstanceProfile") {
        Ok(_) => Ok((name, true)),
        Err(fault) if fault.has_code(&["NoSuchEntity"]) => Ok((name, false)),
        Err(fault) => Err(fault),
    }
}

/// A profile that is already deleted is not an error.
fn ignore_missing<T>(answer: Result<T, AwsError>) -> Result<(), AwsError> {
    match answer {
        Err(fault) if !fault.has_code(&["NoSuchEntity"]) => Err(fault),
        _ => Ok(()),
    }
}

/// Returns whether a profile in the cleanup scope is old, and no node class uses its role.
fn is_unused(profile: &InstanceProfile, scope: &CleanupScope) -> bool {
    let name = profile.instance_profile_name();
    let age = clock::now().as_second() - profile.create_date().secs();
    u64::try_from(age).is_ok_and(|age| age > AGAIN.as_secs())
        && cluster_in(name).is_some_and(|cluster| scope.may_delete(cluster, cluster_part))
        && !scope.led.iter().any(|cluster| {
            class_roles(cluster).any(|role| self::profile_name(cluster, role) == name)
        })
}

/// The roles of a cluster's node classes.
fn class_roles(cluster: &Cluster) -> impl Iterator<Item = &str> {
    cluster.node_classes.iter().filter_map(resolve_node_class::role_of)
}

/// IAM path of the profiles of an installation in a region. Other profiles are never read.
fn profile_path(cluster: &Cluster) -> String {
    format!("/outrigger/{}/{}/", cluster.region, cluster.installation)
}

/// IAM identifies a role by its name, without its path (spec/aws.md §10, 82).
fn name_of_role(role: &str) -> &str {
    role.rsplit('/').next().unwrap_or(role)
}

/// Profile names have up to 128 letters, digits and `+=,.@-_`.
pub(crate) fn profile_name(cluster: &Cluster, role: &str) -> String {
    let short = cluster_part(cluster.name.as_str());
    let (installation, region) = (&cluster.installation, &cluster.region);
    let text = format!("{installation}\n{}\n{region}\n{role}", cluster.name);
    let digest = Sha256::digest(text);
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{NAME_PREFIX}{short}-{hash}")
}

/// The cluster name in profile names.
fn cluster_part(cluster: &str) -> String {
    cluster
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "+=,.@-_".contains(*c))
        .take(64)
        .collect()
}

/// Returns the cluster name in the name of a profile, in the form of [`cluster_part`]. `None` for
/// other profiles.
fn cluster_in(name: &str) -> Option<&str> {
    let (cluster, _) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('-')?;
    Some(cluster)
}

async fn ensure_profile(
    account: &AwsClients,
    cluster: &Cluster,
    name: &str,
    role: &str,
) -> Result<(), AwsError> {
    let iam = &account.iam;
    account.buckets.change.wait_for_token().await;
    let known = iam.get_instance_profile().instance_profile_name(name).send().await;
    let roles = match known.map_aws_error("GetInstanceProfile") {
        Ok(answer) => answer.instance_profile.map_or(Vec::new(), |it| it.roles),
        Err(fault) if fault.has_code(&["NoSuchEntity"]) => {
            create_profile(account, cluster, name).await?;
            Vec::new()
        }
        Err(fault) => return Err(fault),
    };
    if roles.iter().any(|attached| attached.role_name() == role) {
        return Ok(());
    }
    for obsolete in roles {
        remove_role(account, name, obsolete.role_name()).await?;
    }
    let call = iam.add_role_to_instance_profile();
    let answer = call.instance_profile_name(name).role_name(role).send().await;
    answer.map_aws_error("AddRoleToInstanceProfile").map(drop)
}

/// Removes a role from an instance profile.
async fn remove_role(account: &AwsClients, profile: &str, role: &str) -> Result<(), AwsError> {
    let call = account.iam.remove_role_from_instance_profile();
    let call = call.instance_profile_name(profile).role_name(role);
    let answer = call.send().await;
    let answer = answer.map_aws_error("RemoveRoleFromInstanceProfile");
    answer.map(drop)
}

async fn create_profile(
    account: &AwsClients,
    cluster: &Cluster,
    name: &str,
) -> Result<(), AwsError> {
    let owned = format!("kubernetes.io/cluster/{}", cluster.name);
    let tags = [
        (TAG_INSTALLATION, cluster.installation.as_str()),
        (TAG_CLUSTER, cluster.name.as_str()),
        (REGION, cluster.region.as_str()),
        (owned.as_str(), "owned"),
    ];
    let call = account.iam.create_instance_profile().instance_profile_name(name);
    let call = call.path(profile_path(cluster)).set_tags(Some(
        tags.into_iter()
            .filter_map(|(key, value)| Tag::builder().key(key).value(value).build().ok())
            .collect(),
    ));
    match call.send().await.map_aws_error("CreateInstanceProfile") {
        // Another host has created the profile first.
        Err(fault) if fault.has_code(&["EntityAlreadyExists", "EntityAlreadyExistsException"]) => {
            Ok(())
        }
        created => created.map(drop),
    }
}
