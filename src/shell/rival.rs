//! Whether Karpenter is at work in a cluster, by the Lease that its leader holds: two that make
//! nodes for the same pods make them twice, and end each other's.
//! It must not know what is done about it.

use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::model::tenure::{Candidate, Hold, LeaseName, RETRY, Sight};
use crate::shell::kube::client::Connection;
use crate::shell::kube::lease;
use crate::shell::{clock, text};

/// What Karpenter's Lease is called. Source: Karpenter, `pkg/operator`.
pub(crate) const LEASE: &str = "karpenter-leader-election";
/// Where it is: Karpenter's documentation installs it in one of these.
pub(crate) const NAMESPACES: [&str; 2] = ["kube-system", "karpenter"];

/// Time for one look.
const CALL: Duration = Duration::from_secs(4);
/// Looks while nobody is at work.
const IDLE: Duration = Duration::from_secs(10);

/// What is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rival {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It is not there, or nobody lets us see whether it is.
    Gone,
    /// It is at work, in these words.
    Works(String),
}

/// Looks again and again until it is dropped.
pub(crate) struct Lookout {
    seen: watch::Receiver<Rival>,
    task: JoinHandle<()>,
}

impl Lookout {
    pub(crate) fn start(connection: &Connection) -> Self {
        let (tell, seen) = watch::channel(Rival::default());
        let client = connection.client.clone();
        let task = tokio::spawn(look_out(client, tell));
        Self { seen, task }
    }

    /// What was last seen.
    pub(crate) fn seen(&self) -> Rival {
        self.seen.borrow().clone()
    }

    /// Returns when it is otherwise than it was.
    pub(crate) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_out(client: Client, tell: watch::Sender<Rival>) {
    let began = clock::monotonic();
    let place = |namespace: &str| LeaseName {
        namespace: namespace.to_owned(),
        name: LEASE.to_owned(),
    };
    let mut known = NAMESPACES.map(|own| (place(own), Candidate::new("")));
    loop {
        let looks = known.iter().map(|(place, _)| look(&client, place));
        // As long as nobody says how it is, it is as it was.
        if let Some(looks) = join_all(looks)
            .await
            .into_iter()
            .collect::<Option<Vec<_>>>()
        {
            let mut now = Rival::Gone;
            for ((place, candidate), hold) in known.iter_mut().zip(looks) {
                let holder = hold.as_ref().map_or("", |own| own.holder.as_str());
                let holder = text::bounded(holder);
                if let Sight::Theirs(_) = candidate.see(hold, began.elapsed(), |_| false) {
                    now = Rival::Works(format!("{holder} holds the Lease {place}"));
                }
            }
            tell.send_if_modified(|own| {
                let news = *own != now;
                *own = now;
                news
            });
        }
        let idle = *tell.borrow() == Rival::Gone;
        sleep(if idle { IDLE } else { RETRY }).await;
    }
}

/// What a Lease says, if there is one; none where nobody answers. Where we may not see it we go on
/// as if it were not there: the doctor says which right is missing.
async fn look(client: &Client, place: &LeaseName) -> Option<Option<Hold>> {
    match timeout(CALL, lease::other(client, place)).await {
        Ok(Ok(hold)) => Some(hold),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Some(None),
        Ok(Err(_)) | Err(_) => None,
    }
}
