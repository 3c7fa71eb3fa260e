//! Reaches what is known of accounts and regions: one keeper each, for all clusters that are in it.
//! It must not know what a keeper does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Locked};

use tokio::sync::{Mutex, mpsc};

use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;
use crate::shell::aws::account::{AccountKey, Accounts};
use crate::shell::aws::desk::{Ask, Desk, Member, Shared};
use crate::shell::aws::ends::Ends;
use crate::shell::aws::instances::Lister;
use crate::shell::aws::notices::Engines;
use crate::shell::aws::template::Templates;

/// Requests that wait for a keeper: it may be busy asking AWS for a minute.
const QUEUE: usize = 256;

/// Reaches the keeper of an account and region.
#[derive(Clone)]
pub(crate) struct Keeper {
    asks: mpsc::Sender<Ask>,
    pub(crate) shared: Arc<Shared>,
}

impl Keeper {
    /// A cluster is there, or is another than it was.
    pub(crate) async fn attend(&self, member: Member) {
        // A keeper that has ended takes the process with it.
        drop(self.asks.send(Ask::Attend(Box::new(member))).await);
    }

    /// A cluster is driven no more.
    pub(crate) fn leave(&self, cluster: ClusterName, seat: u64) {
        drop(self.asks.try_send(Ask::Leave(cluster, seat)));
    }
}

/// The keepers of all accounts and regions.
#[derive(Default)]
pub(crate) struct Keepers {
    accounts: Accounts,
    known: Mutex<BTreeMap<AccountKey, Keeper>>,
}

impl Keepers {
    /// None yet, of these accounts.
    #[cfg(test)]
    pub(crate) fn of_accounts(accounts: Accounts) -> Self {
        Self {
            accounts,
            known: Mutex::default(),
        }
    }

    /// The keeper of a cluster's account and region.
    pub(crate) async fn of(&self, cluster: &Cluster) -> Keeper {
        let key = AccountKey::of(cluster);
        let mut known = self.known.lock().await;
        if let Some(own) = known.get(&key) {
            return own.clone();
        }
        let account = self.accounts.get(&key).await;
        let shared = Arc::new(Shared {
            account: account.clone(),
            lister: Arc::<Lister>::default(),
            ends: Ends::default(),
            engines: Engines::default(),
            templates: Templates::default(),
            subnets: Locked::default(),
        });
        let (asks, inbox) = mpsc::channel(QUEUE);
        let desk = Desk::new(shared.clone());
        tokio::spawn(desk.keep(inbox));
        let keeper = Keeper { asks, shared };
        known.insert(key, keeper.clone());
        keeper
    }

    /// It is time to see what is due. A tick that is lost or doubled is harmless.
    pub(crate) async fn tick(&self) {
        for keeper in self.known.lock().await.values() {
            drop(keeper.asks.try_send(Ask::Tick));
        }
    }
}
