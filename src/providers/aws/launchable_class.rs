//! A resolved node class with everything for a launch, including rendered user data.

use crate::bootstrap::{self, ClusterEndpoint, LaunchContext};
use crate::catalog::node_class::NodeClassSupply;
use crate::ec2::create_fleet::{FleetRequest, FleetRequestInput};
use crate::ec2::launch_template::{RenderedUserData, TemplateTarget};
use crate::ec2::subnet_capacity::Subnets;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::{
    Cause, ConditionKind, Image, NodeClassCondition, ResolvedNodeClass,
};
use crate::provider::{CommandResult, FailureKind, Launch};

/// Placeholder for a secret in test rendering, about as long as a token.
pub(crate) const STAND_IN: &str = "a stand-in of about the length of a token";

/// Launch data of a cluster's node class.
pub(crate) struct LaunchableClass {
    pub(crate) class: NodeClass,
    /// The hash of the node class, as claims contain it.
    pub(crate) hash: String,
    pub(crate) resolved: ResolvedNodeClass,
    pub(crate) supply: NodeClassSupply,
}

impl LaunchableClass {
    /// Returns whether all reads from AWS and the cluster succeeded.
    pub(crate) fn is_fully_read(&self) -> bool {
        !self.resolved.conditions.iter().any(|condition| {
            // A dry run that was denied is not a failed read. Dry runs are repeated on their own
            // schedule.
            let tried = condition.kind == ConditionKind::ValidationSucceeded;
            match condition.cause {
                Some(Cause::Unavailable) => true,
                Some(Cause::Denied) => !tried,
                _ => false,
            }
        })
    }

    /// Returns the request of a launch, or its result if nothing can be requested.
    pub(crate) fn fleet_request(
        &self,
        launch: &Launch,
        cluster: &Cluster,
        home: &ClusterEndpoint,
        secret: Option<&str>,
        subnets: &mut Subnets,
    ) -> Result<FleetRequest, Box<CommandResult>> {
        let supply = self.supply.supply.as_ref();
        let supply = supply.map_err(|why| Box::new(retry_result(&why.to_string())))?;
        let input = FleetRequestInput {
            launch,
            class: &self.class,
            resolved: &self.resolved,
            images: &supply.images,
            catalog: &supply.catalog,
            site: TemplateTarget {
                cluster: cluster.name.as_str(),
                region: &cluster.region,
                ipv6: home.ipv6,
            },
        };
        let mut render = |image: &Image, max_pods: i64| {
            let context = LaunchContext {
                labels: &launch.labels,
                taints: &launch.taints,
                max_pods,
                image_name: Some(&image.name),
                secret,
            };
            let rendered = bootstrap::render(&self.class, home, &context)?;
            Ok(RenderedUserData::new(rendered.0))
        };
        input.build_request(subnets, &mut render, clock::now())
    }

    /// Logs what prevents launches.
    pub(crate) fn log_unmet(&self, cluster: &ClusterName) {
        for unmet in &self.resolved.conditions {
            let Some(cause) = unmet.cause.map(Cause::as_str) else {
                continue;
            };
            let (class, condition, why) = (&self.class.name, unmet.kind.as_str(), &unmet.message);
            tracing::warn!(%cluster, node_class = %class, condition, cause, why, "not ready");
        }
    }
}

/// The engine decides the launch again, because EC2 was not called.
pub(crate) fn retry_result(why: &str) -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Conflict, text: why.to_owned() }
}

/// Tests whether user data can be rendered for each image of a class, within the size limit.
pub(crate) fn validate_user_data(
    class: &NodeClass,
    resolved: &ResolvedNodeClass,
    home: Option<&ClusterEndpoint>,
) -> NodeClassCondition {
    let kind = ConditionKind::ValidationSucceeded;
    let Some(home) = home else {
        let text = "the API of the cluster has not responded yet";
        return NodeClassCondition::unmet(kind, Cause::Unavailable, text);
    };
    for image in &resolved.images {
        let context = LaunchContext {
            labels: &Default::default(),
            taints: &[],
            max_pods: 110,
            image_name: Some(&image.name),
            secret: Some(STAND_IN),
        };
        if let Err(error) = bootstrap::render(class, home, &context) {
            return NodeClassCondition::unmet(kind, error.cause(), error.to_string());
        }
    }
    NodeClassCondition::met(kind)
}
