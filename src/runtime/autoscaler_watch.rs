//! Whether Karpenter is at work in a cluster, by the Lease that its leader holds: two that make
//! nodes for the same pods make them twice, and end each other's.
//! It must not know what is done about it.

use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::coordination::leader_election::{LeaseHolder, RETRY};
use crate::coordination::other_autoscaler::{AutoscalerActivity, Watched};
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease;
use crate::model::id::LeaseName;

/// What Karpenter's Lease is called. Source: Karpenter, `pkg/operator`.
pub(crate) const LEASE: &str = "karpenter-leader-election";
/// Where it is: Karpenter's documentation installs it in one of these.
pub(crate) const NAMESPACES: [&str; 2] = ["kube-system", "karpenter"];

/// Time for one look.
const CALL: Duration = Duration::from_secs(4);
/// Looks while nobody is at work.
const IDLE: Duration = Duration::from_secs(5);
/// A Lease that was last renewed so long ago is nobody's, unless it is renewed all the same.
const OLD: SignedDuration = SignedDuration::from_mins(10);

/// What is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OtherAutoscaler {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Nothing, for this reason.
    Unseen(String),
    /// It is not there.
    Gone,
    /// It is at work, by this sign.
    Works(String),
}

/// Looks again and again until it is dropped.
pub(crate) struct AutoscalerWatch {
    seen: watch::Receiver<OtherAutoscaler>,
    task: JoinHandle<()>,
}

impl AutoscalerWatch {
    pub(crate) fn start(connection: &Connection) -> Self {
        let (tell, seen) = watch::channel(OtherAutoscaler::default());
        let client = connection.client.clone();
        let task = tokio::spawn(look_out(client, tell));
        Self { seen, task }
    }

    /// What was last seen.
    pub(crate) fn seen(&self) -> OtherAutoscaler {
        self.seen.borrow().clone()
    }

    /// Returns when it is otherwise than it was.
    pub(crate) async fn changed(&mut self) {
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

async fn look_out(client: Client, tell: watch::Sender<OtherAutoscaler>) {
    let began = clock::monotonic();
    let place = |namespace: &str| LeaseName {
        namespace: namespace.to_owned(),
        name: LEASE.to_owned(),
    };
    let mut known = NAMESPACES.map(|own| (place(own), Watched::default()));
    loop {
        let looks = join_all(known.iter().map(|(place, _)| look(&client, place))).await;
        let looks = known.iter_mut().zip(looks);
        let seen = looks.map(|((place, own), look)| told(place, own, look, began.elapsed()));
        // Whoever is at work anywhere counts before what is not known of elsewhere.
        let now = seen.max_by_key(|own| match own {
            OtherAutoscaler::Gone => 0,
            OtherAutoscaler::Unknown => 1,
            OtherAutoscaler::Unseen(_) => 2,
            OtherAutoscaler::Works(_) => 3,
        });
        let now = now.unwrap_or_default();
        let wait = if now == OtherAutoscaler::Gone {
            IDLE
        } else {
            RETRY
        };
        tell.send_if_modified(|own| {
            let news = *own != now;
            *own = now;
            news
        });
        sleep(wait).await;
    }
}

/// What one look makes of one place.
fn told(
    place: &LeaseName,
    known: &mut Watched,
    look: Result<Option<LeaseHolder>, String>,
    now: Duration,
) -> OtherAutoscaler {
    let (work, why) = match look {
        Ok(hold) => {
            let old = hold.as_ref().is_some_and(is_old);
            (known.look(hold, old, now), String::new())
        }
        Err(why) => (known.failed(now), why),
    };
    match work {
        AutoscalerActivity::Unknown => OtherAutoscaler::Unknown,
        AutoscalerActivity::Unseen => {
            OtherAutoscaler::Unseen(format!("{place}, Karpenter's, cannot be read: {why}"))
        }
        AutoscalerActivity::Gone => OtherAutoscaler::Gone,
        AutoscalerActivity::Goes => {
            OtherAutoscaler::Works(format!("its Lease {place} is held, or was a moment ago"))
        }
    }
}

fn is_old(hold: &LeaseHolder) -> bool {
    let at = hold.renewed.parse::<Timestamp>().ok();
    at.is_some_and(|at| clock::now().duration_since(at) > OLD)
}

/// What a Lease says, if there is one. Where we may not see it nothing is known: a Karpenter may be
/// at work.
async fn look(client: &Client, place: &LeaseName) -> Result<Option<LeaseHolder>, String> {
    match timeout(CALL, lease::other(client, place)).await {
        Ok(Ok(hold)) => Ok(hold),
        Ok(Err(error)) => Err(text::chain(&error)),
        Err(_) => Err(format!("no answer within {CALL:?}")),
    }
}
