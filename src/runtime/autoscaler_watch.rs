//! Checks whether Karpenter is active in a cluster, by the Lease that its leader holds. Two active
//! autoscalers would launch nodes twice for the same pods and disrupt each other's nodes.

use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::coordination::leader_election::{LeaseHolder, RETRY};
use crate::coordination::other_autoscaler::{AutoscalerActivity, Watched};
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease;
use crate::model::id::LeaseName;

/// Name of Karpenter's Lease. Source: Karpenter, `pkg/operator`.
pub(crate) const LEASE: &str = "karpenter-leader-election";
/// Namespaces in which Karpenter's Lease may be: Karpenter's documentation installs Karpenter in
/// one of these.
pub(crate) const NAMESPACES: [&str; 2] = ["kube-system", "karpenter"];

/// Timeout of one read.
const CALL: Duration = Duration::from_secs(4);
/// Interval of reads while no other autoscaler is active.
const IDLE: Duration = Duration::from_secs(5);
/// A Lease that was last renewed longer ago than this counts as not held, unless it is renewed
/// again.
const OLD: SignedDuration = SignedDuration::from_mins(10);

/// The state of the other autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OtherAutoscaler {
    /// Not known yet.
    #[default]
    Unknown,
    /// The state is not known, for this reason.
    Unseen(String),
    /// The other autoscaler is not active.
    Gone,
    /// The other autoscaler is active. The value is the evidence for this.
    Works(String),
}

/// Reads the Lease periodically until dropped.
pub(crate) struct AutoscalerWatch {
    seen: watch::Receiver<OtherAutoscaler>,
    task: JoinHandle<()>,
}

impl AutoscalerWatch {
    pub(crate) fn start(connection: &Connection) -> Self {
        let (states, state) = watch::channel(OtherAutoscaler::default());
        let client = connection.client.clone();
        let task = tokio::spawn(watch_autoscalers(client, states));
        Self { seen: state, task }
    }

    /// Returns the last known state of the other autoscaler.
    pub(crate) fn last_state(&self) -> OtherAutoscaler {
        self.seen.borrow().clone()
    }

    /// Waits until the state of the other autoscaler changes.
    pub(crate) async fn wait_for_change(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for AutoscalerWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch_autoscalers(client: Client, states: watch::Sender<OtherAutoscaler>) {
    let began = clock::monotonic_now();
    let mut leases = NAMESPACES.map(|namespace| {
        let name = LeaseName { namespace: namespace.to_owned(), name: LEASE.to_owned() };
        (name, Watched::default())
    });
    loop {
        let holders = join_all(leases.iter().map(|(lease, _)| read_lease(&client, lease))).await;
        let holders = leases.iter_mut().zip(holders);
        let activities = holders.map(|((lease, watched), holder)| {
            state_after_read(lease, watched, holder, began.elapsed())
        });
        // If Karpenter is active in one namespace, an unknown state in another namespace has no
        // effect.
        let now = activities.max_by_key(|activity| match activity {
            OtherAutoscaler::Gone => 0,
            OtherAutoscaler::Unknown => 1,
            OtherAutoscaler::Unseen(_) => 2,
            OtherAutoscaler::Works(_) => 3,
        });
        let now = now.unwrap_or_default();
        let wait = if now == OtherAutoscaler::Gone { IDLE } else { RETRY };
        states.send_if_modified(|current| {
            let has_changed = *current != now;
            *current = now;
            has_changed
        });
        sleep(wait).await;
    }
}

/// Returns the state of Karpenter after one read of one Lease.
fn state_after_read(
    lease: &LeaseName,
    watched: &mut Watched,
    holder: Result<Option<LeaseHolder>, LeaseReadError>,
    now: Duration,
) -> OtherAutoscaler {
    let (work, why) = match holder {
        Ok(hold) => {
            let old = hold.as_ref().is_some_and(is_old);
            (watched.on_lease_read(hold, old, now), String::new())
        }
        Err(error) => (watched.on_read_failure(now), error.to_string()),
    };
    match work {
        AutoscalerActivity::Unknown => OtherAutoscaler::Unknown,
        AutoscalerActivity::Unseen => {
            OtherAutoscaler::Unseen(format!("cannot read Karpenter's Lease {lease}: {why}"))
        }
        AutoscalerActivity::Gone => OtherAutoscaler::Gone,
        AutoscalerActivity::Goes => {
            OtherAutoscaler::Works(format!("its Lease {lease} is held or was held recently"))
        }
    }
}

fn is_old(hold: &LeaseHolder) -> bool {
    let at = hold.renewed.parse::<Timestamp>().ok();
    at.is_some_and(|at| clock::now().duration_since(at) > OLD)
}

/// Why a Lease cannot be read.
#[derive(Debug, Error)]
enum LeaseReadError {
    #[error("{}", text::error_chain(.0))]
    Api(kube::Error),
    #[error("no response within {CALL:?}")]
    Late,
}

/// Reads a Lease, if it exists. If reading is denied, the state is unknown: Karpenter may be
/// active.
async fn read_lease(
    client: &Client,
    lease: &LeaseName,
) -> Result<Option<LeaseHolder>, LeaseReadError> {
    match timeout(CALL, lease::read_other_holder(client, lease)).await {
        Ok(hold) => hold.map_err(LeaseReadError::Api),
        Err(_) => Err(LeaseReadError::Late),
    }
}
