//! Registered clusters, and receivers of queue messages.

use std::collections::BTreeSet;

use tokio::task::AbortHandle;

use super::{RegionCluster, RegionState, RegionTask};
use crate::providers::aws::interruption_listener::Listener;

impl Drop for RegionTask {
    fn drop(&mut self) {
        // If another region task uses these queues, that task reads them.
        self.queues.values().for_each(AbortHandle::abort);
    }
}

impl RegionTask {
    /// Removes a registration of a cluster that was removed or replaced. Its engine receives no
    /// more messages, unless the same engine is still registered, for example by the task of a
    /// different role.
    pub(super) fn unregister_engine(&self, old: &RegionCluster, new: Option<&RegionCluster>) {
        let Some(events) = &old.events else {
            return;
        };
        let still_registered = new.and_then(|member| member.events.as_ref());
        if still_registered.is_some_and(|sender| sender.same_channel(events)) {
            return;
        }
        let name = &old.cluster.name;
        if let Ok(mut engines) = self.shared.engines.lock()
            && engines.get(name).is_some_and(|(sender, _)| sender.same_channel(events))
        {
            engines.remove(name);
        }
    }

    /// Starts one listener per queue of the clusters, for their engines.
    pub(super) fn start_listeners(&mut self) {
        let members = self.members.iter();
        let engines = members.filter_map(|(name, member)| {
            let events = member.events.clone().filter(|event| !event.is_closed())?;
            Some((name, events, &member.connection.fence))
        });
        if let Ok(mut known) = self.shared.engines.lock() {
            known.retain(|_, (sender, _)| !sender.is_closed());
            for (name, events, fence) in engines {
                // An engine that is already known keeps the fence of its own term.
                let registered = known.get(name);
                if registered.is_none_or(|(sender, _)| !sender.same_channel(&events)) {
                    known.insert(name.clone(), (events, fence.of_this_term()));
                }
            }
        }
        // A host that leads no cluster of a queue would only delay messages for other hosts.
        let led = self.members.values().filter(|member| member.events.is_some());
        let queues = led.filter_map(|member| {
            let queue = member.cluster.interruption.as_ref()?.queue.clone();
            Some((member.cluster.installation.clone(), queue))
        });
        let wanted: BTreeSet<(String, String)> = queues.collect();
        self.queues.retain(|key, task| {
            let is_kept = wanted.contains(key) && !task.is_finished();
            if !is_kept {
                task.abort();
            }
            is_kept
        });
        for key in wanted {
            let RegionState { account, lister, engines, .. } = &*self.shared;
            let (account, lister, engines) = (account.clone(), lister.clone(), engines.clone());
            let (installation, queue) = key.clone();
            let listener = Listener::new(account, lister, engines, installation, queue);
            let entry = self.queues.entry(key);
            entry.or_insert_with(|| tokio::spawn(listener.listen()).abort_handle());
        }
    }
}
