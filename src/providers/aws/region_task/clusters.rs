//! Registered clusters, and receivers of queue messages.

use std::collections::BTreeSet;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::{RegionCluster, RegionState, RegionTask};
use crate::engine::event::Event;
use crate::providers::aws::interruption_listener::Listener;

impl Drop for RegionTask {
    fn drop(&mut self) {
        // A different region task reads them, if any.
        self.queues.values().for_each(AbortHandle::abort);
    }
}

impl RegionTask {
    /// Removes a registration of a cluster that was removed or replaced. Its engine receives no
    /// more messages, unless the same engine is still registered, for example by the task of a
    /// different role.
    pub(super) fn unheard(&self, old: &RegionCluster, new: Option<&RegionCluster>) {
        let Some(events) = &old.events else {
            return;
        };
        let is_same =
            |sender: Option<&mpsc::Sender<Event>>| sender.is_some_and(|it| it.same_channel(events));
        let name = &old.cluster.name;
        if let Ok(mut known) = self.shared.engines.lock()
            && is_same(known.get(name).map(|engine| &engine.0))
            && !is_same(new.and_then(|member| member.events.as_ref()))
        {
            known.remove(name);
        }
    }

    /// Starts one listener per queue of the clusters, for their engines.
    pub(super) fn listen(&mut self) {
        let members = self.members.iter();
        let engines = members.filter_map(|(name, member)| {
            let events = member.events.clone().filter(|event| !event.is_closed())?;
            Some((name, events, &member.connection.fence))
        });
        if let Ok(mut known) = self.shared.engines.lock() {
            known.retain(|_, engine| !engine.0.is_closed());
            for (name, events, fence) in engines {
                // An engine that is already known keeps the fence of its own term.
                let is_known = known.get(name);
                if !is_known.is_some_and(|engine| engine.0.same_channel(&events)) {
                    known.insert(name.clone(), (events, fence.of_this_term()));
                }
            }
        }
        // A host that leads no cluster of a queue would only delay messages for other hosts.
        let led = self
            .members
            .values()
            .filter(|member| member.events.is_some());
        let named = led.filter_map(|member| {
            let queue = member.cluster.interruption.as_ref()?.queue.clone();
            Some((member.cluster.installation.clone(), queue))
        });
        let wanted: BTreeSet<(String, String)> = named.collect();
        self.queues.retain(|key, task| {
            let stays = wanted.contains(key) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        for key in wanted {
            let RegionState {
                account,
                lister,
                engines,
                ..
            } = &*self.shared;
            let (account, lister) = (account.clone(), lister.clone());
            let listener = Listener::new(account, lister, engines.clone(), key.clone());
            let entry = self.queues.entry(key);
            entry.or_insert_with(|| tokio::spawn(listener.listen()).abort_handle());
        }
    }
}
