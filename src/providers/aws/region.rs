//! Handles to region tasks, one task per account and region for all its clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as Locked};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::id::{ClusterName, TypeName};
use crate::providers::aws::clients::{AccountKey, Accounts};
use crate::providers::aws::interruption_listener::Engines;
use crate::providers::aws::region_task::{RegionCluster, RegionMessage, RegionState, RegionTask};

/// Start delay, so that tasks of many accounts do not start in the same second.
const JITTER_MS: u64 = 20_000;

/// Capacity of the request channel. A task may be busy with AWS calls for a minute.
const QUEUE: usize = 256;

/// Handle to the task of an account and region.
#[derive(Clone)]
pub(crate) struct RegionHandle {
    messages: mpsc::Sender<RegionMessage>,
    pub(crate) shared: Arc<RegionState>,
}

impl RegionHandle {
    fn is_same_account_and_region(&self, key: &AccountKey) -> bool {
        self.shared.account.key.is_same_account_and_region(key)
    }

    /// Returns whether the task runs. Only a panic stops the task.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.messages.is_closed()
    }

    /// Adds or changes a cluster.
    pub(crate) async fn register_cluster(&self, member: RegionCluster) {
        // If the task has stopped, its clusters are restarted.
        let message = RegionMessage::Attend(Box::new(member));
        drop(self.messages.send(message).await);
    }

    /// Reports the memory of a node of this type and image, in bytes.
    pub(crate) async fn report_memory(&self, instance_type: TypeName, image: String, memory: i64) {
        let message = RegionMessage::Learn(instance_type, image, memory);
        drop(self.messages.send(message).await);
    }

    /// Removes a cluster.
    pub(crate) fn remove_cluster(&self, cluster: ClusterName, session: u64) {
        drop(self.messages.try_send(RegionMessage::Leave(cluster, session)));
    }
}

/// The tasks of all accounts and regions.
#[derive(Default)]
pub(crate) struct Regions {
    accounts: Accounts,
    known: Mutex<BTreeMap<AccountKey, RegionHandle>>,
    configured: Arc<Locked<BTreeSet<ClusterName>>>,
}

impl Regions {
    /// Creates an empty set.
    #[cfg(test)]
    pub(crate) fn of_accounts(accounts: Accounts) -> Self {
        Self { accounts, ..Self::default() }
    }

    /// Sets the clusters that are configured on this host, running or not.
    pub(crate) fn set_configured(&self, clusters: BTreeSet<ClusterName>) {
        let mut configured = self.configured.lock();
        if let Ok(configured) = configured.as_deref_mut() {
            *configured = clusters;
        }
    }

    /// Returns the task of a cluster's account and region.
    pub(crate) async fn handle_for(&self, cluster: &Cluster) -> RegionHandle {
        let key = AccountKey::from_cluster(cluster);
        let mut known = self.known.lock().await;
        if let Some(handle) = known.get(&key).filter(|handle| handle.is_healthy()) {
            return handle.clone();
        }
        let account = self.accounts.get(&key).await;
        let neighbour = known.values().find(|handle| handle.is_same_account_and_region(&key));
        let engines =
            neighbour.map_or_else(Engines::default, |handle| handle.shared.engines.clone());
        let configured = self.configured.clone();
        let shared = Arc::new(RegionState::new(account.clone(), engines, configured));
        let (messages, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(RegionTask::new(shared.clone()).run(inbox));
        let handle = RegionHandle { messages, shared };
        known.insert(key, handle.clone());
        handle
    }

    /// Triggers reads that are due. A lost or repeated trigger is harmless.
    pub(crate) async fn trigger_reads(&self) {
        for handle in self.known.lock().await.values() {
            let messages = handle.messages.clone();
            let wait = Duration::from_millis(clock::random_seed() % JITTER_MS);
            tokio::spawn(async move {
                sleep(wait).await;
                drop(messages.try_send(RegionMessage::Tick));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tokio::sync::mpsc;
    use tower::service_fn;

    use super::{Duration, sleep};

    use crate::engine::command::Command;
    use crate::engine::event::Event;
    use crate::kubernetes::client::Connection;
    use crate::provider::CommandResult;
    use crate::providers::aws::provider::Ec2;
    use crate::providers::aws::tests::idle_calls::{self, Counts, OperationErrors, start_provider};
    use crate::providers::interface::Provider;

    const MIB: i64 = 1 << 20;

    #[tokio::test]
    async fn ended_region_task_is_replaced() {
        let regions = idle_calls::regions(&Counts::default(), &OperationErrors::default());
        let cluster = Arc::new(idle_calls::cluster(0));
        let handle = regions.handle_for(&cluster).await;
        let first = Ec2::new(cluster.clone(), idle_calls::api(), handle);
        assert!(first.is_healthy());
        // As after a panic.
        let closed = mpsc::channel(1).0;
        for known in regions.known.lock().await.values_mut() {
            known.messages = closed.clone();
        }
        let ended = regions.known.lock().await.values().next().cloned();
        let second = Ec2::new(cluster, idle_calls::api(), ended.expect("one"));
        assert!(!second.is_healthy());
        let (third, mut inbox) =
            start_provider(&regions, idle_calls::cluster(0), idle_calls::api()).await;
        assert!(third.is_healthy());
        sleep(Duration::from_secs(3)).await;
        last_memory(&mut inbox);
    }

    /// Memory of the instance type in the last event of a cluster.
    fn last_memory(inbox: &mut mpsc::Receiver<Event>) -> i64 {
        let mut last = None;
        while let Ok(event) = inbox.try_recv() {
            if let Event::ClassesChanged(classes) = event {
                last = Some(classes);
            }
        }
        let classes = last.expect("classes");
        let class = classes.values().next().expect("a class");
        let supply = class.supply.as_ref().expect("a ready class");
        supply.catalog.get("m5.large").expect("a type").capacity.memory
    }

    /// A connection that never responds.
    fn hanging() -> Connection {
        let service =
            service_fn(|_: Request<Body>| pending::<Result<Response<Body>, tower::BoxError>>());
        Connection::from_client(Client::new(service, "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_cluster_api_does_not_delay_other_clusters() {
        let regions = idle_calls::regions(&Counts::default(), &OperationErrors::default());
        let mut all = Vec::new();
        for number in 0..6 {
            let api = if number < 5 { hanging() } else { idle_calls::api() };
            all.push(start_provider(&regions, idle_calls::cluster(number), api).await);
        }
        sleep(Duration::from_secs(3)).await;
        last_memory(&mut all[5].1);
        while let Ok(event) = all[0].1.try_recv() {
            if let Event::ClassesChanged(classes) = event {
                assert!(
                    classes.values().all(|class| class.supply.is_err()),
                    "the class has supply"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn discovered_memory_is_shared_by_clusters_of_a_region() {
        let regions = idle_calls::regions(&Counts::default(), &OperationErrors::default());
        let mut all = Vec::new();
        for number in 0..2 {
            let cluster = idle_calls::cluster(number);
            all.push(start_provider(&regions, cluster, idle_calls::api()).await);
        }
        sleep(Duration::from_mins(1)).await;
        // Less 7.5 %.
        let estimate = 7577 * MIB;
        for (_, inbox) in &mut all {
            assert_eq!(last_memory(inbox), estimate);
        }
        // A second report never lowers the estimate.
        for memory in [7900 * MIB, 8000 * MIB] {
            let report = Command::SaveDiscoveredMemory {
                instance_type: "m5.large".into(),
                image: "ami-1".to_owned(),
                memory,
            };
            assert_eq!(all[0].0.execute(report).await, CommandResult::Done);
        }
        regions.trigger_reads().await;
        sleep(Duration::from_mins(1)).await;
        for (_, inbox) in &mut all {
            assert_eq!(last_memory(inbox), 7900 * MIB);
        }
    }
}
