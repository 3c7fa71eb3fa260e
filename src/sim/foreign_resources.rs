//! Creates instances and nodes that are not managed, and checks that they still exist.

use std::collections::BTreeSet;

use crate::model::claim::ClaimRecord;
use crate::model::id::{ClusterName, NodeName};
use crate::model::instance::OfferingKey;
use crate::model::labels::Labels;
use crate::model::node::Node;
use crate::model::taint::{Effect, Taint};
use crate::provider::{CommandResult, Launch};
use crate::sim::World;
use crate::sim::invariants::Invariant;

/// Number of foreign instances.
const STRANGERS: usize = 3;

impl World {
    /// Launches an instance of a different installation, one of a different cluster, and one
    /// without tags, which is a node of this cluster.
    pub(super) fn create_foreign(&mut self) {
        let Some(offering) = self.any_offering() else {
            return;
        };
        let config = &self.scene.config;
        let other = ClusterName("another-cluster".to_owned());
        // Foreign claims have complete tags. The last instance has none.
        let owners = [
            ("another-installation".to_owned(), config.name.clone()),
            (config.installation.clone(), other),
            (String::new(), ClusterName::default()),
        ];
        for (number, (installation, cluster)) in owners.into_iter().enumerate() {
            let mut launch = foreign_launch(number, offering.clone(), self.now);
            (launch.claim.installation, launch.claim.cluster) = (installation, cluster);
            if number + 1 < STRANGERS {
                launch.tags = launch.claim.to_tags();
            }
            let answer = self.scene.cloud.launch(&launch, self.now);
            if let (CommandResult::Launched(instance), true) = (answer, number + 1 == STRANGERS) {
                let provider_id = format!("aws:///{}/{}", instance.offering.zone, instance.id);
                self.add_system_node(provider_id);
            }
        }
    }

    fn any_offering(&self) -> Option<OfferingKey> {
        self.scene.catalog.types().find_map(|shape| {
            let offering = shape.offerings.iter().find(|offering| offering.available)?;
            Some(offering.key(&shape.name))
        })
    }

    fn add_system_node(&mut self, provider_id: String) {
        let name = "ip-10-0-255-1.ec2.internal";
        let mut capacity = crate::model::quantity::Resources::default();
        (capacity.cpu_milli, capacity.memory, capacity.pods) = (2000, 4 << 30, 29);
        let node = Node {
            name: NodeName::from(name),
            uid: self.scene.cluster.store_mut().new_uid(),
            provider_id,
            created: Some(self.now),
            labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
            taints: vec![Taint::new("CriticalAddonsOnly", Effect::NoSchedule)],
            ready: true,
            capacity: capacity.clone(),
            allocatable: capacity,
            ..Node::default()
        };
        self.scene.cluster.add_node(node, self.now);
    }

    /// Checks that every foreign instance is still live.
    pub(super) fn check_foreign(&mut self) {
        let ended: Vec<String> = self
            .scene
            .cloud
            .all_instances()
            .map(|machine| machine.truth())
            .filter(|instance| !self.scene.is_ours(instance) && !instance.state.is_live())
            .map(|instance| instance.id.0.clone())
            .collect();
        for instance in ended {
            let text = format!("{instance}, which is not ours, has ended");
            self.checker.add_violation(Invariant::Foreign, self.now, text);
        }
    }
}

fn foreign_launch(number: usize, offering: OfferingKey, now: jiff::Timestamp) -> Launch {
    let claim = ClaimRecord {
        id: format!("stranger-{number}").into(),
        pool: "strangers".into(),
        created: now,
        ..ClaimRecord::default()
    };
    Launch {
        claim,
        offerings: vec![offering],
        labels: Labels::new(),
        taints: Vec::new(),
        tags: Labels::new(),
        devices: BTreeSet::new(),
        overlaid: false,
        relaxed: false,
        varied: false,
    }
}
