//! Whether the view of the cluster is whole, and what is asked to make it so.
//! It must not know what is decided upon the view.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::in_flight::CommandPurpose;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{NodeName, ObjectKey};
use crate::model::watched_object::ObjectKind;
use crate::state::node_claims::LISTING_APART;

/// Instances are listed this often while nothing is on its way.
const LISTING_IDLE: SignedDuration = SignedDuration::from_secs(60);

/// A listing older than this is stale.
const LISTING_AGE_MAX: SignedDuration = SignedDuration::from_secs(180);

/// After a fault the view must have been whole for this long before anything is decided upon it.
const QUIET: SignedDuration = SignedDuration::from_secs(5);

/// After a gap that is shorter, nothing that began before it is in doubt: all was listed anew.
const SHORT_GAP: SignedDuration = SignedDuration::from_mins(1);

/// Objects asked for by name when a listing lacks many: enough that a listing which lacks a tenth
/// of them wrongly is caught more often than not, few enough to ask at once.
const PROBES_MAX: usize = 8;

/// Pods bound to nodes we do not know are normal for a moment: two watches are not in step.
const UNKNOWN_MAX: SignedDuration = SignedDuration::from_secs(3);

/// Places are counted on only while the watches of pods and nodes gave a sign of life within this:
/// the shell has them do so every 10 s or so, and looks for it every 2 s.
const RECENT_MAX: SignedDuration = SignedDuration::from_secs(15);

impl Engine {
    /// Freezes, thaws, and asks for what is missing.
    pub(super) fn look(&mut self, now: Timestamp) {
        self.list_instances(now);
        self.doubt_unknown_nodes(now);
        self.probe(now);
        self.watch_anew(now);
        self.check_identity(now);
        let fault = self.fault(now);
        match fault {
            Some(why) => {
                self.looking.whole_since = None;
                if self.looking.ready && self.looking.frozen.is_none() {
                    self.report(Report::Frozen(why));
                    self.looking.frozen = Some(now);
                    self.withdraw("the view is not whole", |own| !own.is_look(), now);
                }
            }
            None => self.whole(now),
        }
        if let Some(at) = self
            .state
            .views
            .next_stale(now, self.state.cluster.api.silence_max())
        {
            self.wake_at(at, "a watch may be stale");
        }
    }

    /// Why nothing may be decided upon the view now, if it is not whole.
    pub(super) fn fault(&self, now: Timestamp) -> Option<String> {
        let listed = self.state.ledger.listed_at();
        let stale = listed.is_none_or(|at| now.duration_since(at) > LISTING_AGE_MAX);
        let cluster = &self.state.cluster;
        let views = &self.state.views;
        let mismatch = self.looking.mismatch.as_ref().map(ToString::to_string);
        let clock_skew = self.looking.clock_skew.as_ref().map(ToString::to_string);
        clock_skew
            .or(mismatch)
            .or_else(|| views.fault(cluster.kinds(), now, cluster.api.silence_max()))
            .or_else(|| self.looking.listing_fault.clone())
            .or_else(|| {
                (!self.state.ledger.is_settled())
                    .then(|| "two listings of instances have not agreed yet".to_owned())
            })
            .or_else(|| stale.then(|| "the listing of instances is stale".to_owned()))
            .or_else(|| {
                (!self.looking.ready && self.looking.unknown_since.is_some())
                    .then(|| "pods are bound to unknown nodes".to_owned())
            })
    }

    /// What a plan takes into account and is not known yet, in words; none where all is.
    pub fn missing(&self, now: Timestamp) -> Option<String> {
        if !self.is_ready() {
            let unlisted = self.looking.listing_failed.clone();
            let fault = unlisted.or_else(|| self.fault(now));
            return Some(fault.unwrap_or_else(|| "the view was not whole until now".to_owned()));
        }
        let unasked = self.state.awaits_classes();
        let unasked = unasked.then(|| "AWS has not been asked what it has".to_owned());
        let unread = self.unread_until(now);
        let unread = unread.map(|_| "buffers of the cluster have not been read".to_owned());
        self.state.notes.fault.clone().or(unasked).or(unread)
    }

    fn whole(&mut self, now: Timestamp) {
        if !self.looking.ready {
            self.looking.ready = true;
            self.looking.thawed = Some(now);
            self.state.started = Some(now);
            self.report(Report::Ready);
            return;
        }
        let Some(frozen) = self.looking.frozen else {
            return;
        };
        let since = *self.looking.whole_since.get_or_insert(now);
        let thaw = since.checked_add(QUIET).unwrap_or(now);
        if thaw <= now {
            self.looking.frozen = None;
            self.looking.whole_since = None;
            self.looking.thawed = Some(now);
            if now.duration_since(frozen) > SHORT_GAP {
                self.looking.gap = Some(now);
            }
            self.state.ledger.skip(frozen, now);
            self.report(Report::Thawed);
        } else {
            self.wake_at(thaw, "the view has been whole for a while");
        }
    }

    /// Asks for a listing, or says when the next is due.
    pub(super) fn list_instances(&mut self, now: Timestamp) {
        let moving = !self.state.ledger.is_settled()
            || self.looking.listing_fault.is_some()
            || self.adopting.awaits_listing()
            || self.awaits_missing_nodes()
            || self
                .state
                .ledger
                .claims
                .values()
                .any(|claim| match claim.phase {
                    ClaimPhase::Launching | ClaimPhase::Terminating => true,
                    ClaimPhase::Launched => self.awaits_partition(claim),
                    _ => false,
                });
        let wait = if moving { LISTING_APART } else { LISTING_IDLE };
        let last = self
            .looking
            .listing_asked
            .max(self.state.ledger.listed_at());
        let due = last.map_or(now, |at| at.checked_add(wait).unwrap_or(now));
        if self.looking.listing {
            return;
        }
        if due <= now {
            self.looking.listing = true;
            self.looking.listing_asked = Some(now);
            self.issue(Command::ListInstances, CommandPurpose::Listing, now);
        } else {
            self.wake_at(due, "instances are to be listed");
        }
    }

    /// Pods bound to nodes that the watch of nodes does not show mean that it shows too little.
    fn doubt_unknown_nodes(&mut self, now: Timestamp) {
        let unknown: Vec<(ObjectKey, String)> = self
            .state
            .objects
            .unknown_nodes()
            .filter(|name| !self.looking.gone_nodes.contains(*name))
            .take(PROBES_MAX)
            .map(|name| (ObjectKey::new("", name.as_str()), String::new()))
            .collect();
        if unknown.is_empty() {
            self.looking.unknown_since = None;
            return;
        }
        let since = *self.looking.unknown_since.get_or_insert(now);
        let due = since.checked_add(UNKNOWN_MAX).unwrap_or(now);
        if due > now {
            self.wake_at(due, "pods are bound to unknown nodes");
        } else {
            self.looking
                .doubts
                .entry(ObjectKind::Node)
                .or_insert(unknown);
        }
    }

    /// Whether the view is recent enough to tell pods to go because others left them room: a watch
    /// that has stalled without a word is believed for longer in all that costs nobody anything.
    /// Where it is not, the next sign of life makes a pass.
    pub(super) fn sees_places(&mut self, now: Timestamp) -> bool {
        let views = &self.state.views;
        let is_recent = |kind| views.is_recent(kind, now, RECENT_MAX);
        let recent = is_recent(ObjectKind::Pod) && is_recent(ObjectKind::Node);
        self.looking.awaits_sign |= !recent;
        recent
    }

    fn probe(&mut self, now: Timestamp) {
        for kind in [ObjectKind::Pod, ObjectKind::Node] {
            let Some(objects) = self.looking.doubts.get(&kind) else {
                continue;
            };
            let mut flights = self.flights.values();
            let is_asked = flights.any(|flight| flight.kind == CommandPurpose::Probe(kind));
            let retry = self.looking.probing.entry(kind).or_default();
            if is_asked {
                continue;
            }
            if let Some(at) = retry.next().filter(|at| *at > now) {
                self.wake_at(at, "a doubted listing is to be probed");
                continue;
            }
            let stride = objects.len().div_ceil(PROBES_MAX).max(1);
            let sample: Vec<_> = objects.iter().step_by(stride).cloned().collect();
            let listings = self.looking.listings(kind);
            self.looking.probes.insert(kind, (listings, sample.clone()));
            let probe = Command::Probe {
                kind,
                objects: sample,
            };
            self.issue(probe, CommandPurpose::Probe(kind), now);
        }
    }

    /// Has a watch start anew that shows less than there is, again and again until a listing comes
    /// in: whether that was heard nobody knows before.
    fn watch_anew(&mut self, now: Timestamp) {
        for kind in [ObjectKind::Pod, ObjectKind::Node] {
            let mut flights = self.flights.values();
            let is_asked = flights.any(|flight| flight.kind == CommandPurpose::Rewatch(kind));
            let is_probed = self.looking.doubts.contains_key(&kind);
            if is_asked || is_probed || !self.state.views.is_doubted(kind) {
                continue;
            }
            let retry = self.looking.probing.entry(kind).or_default();
            if let Some(at) = retry.next().filter(|at| *at > now) {
                self.wake_at(at, "a doubted watch is to start anew");
                continue;
            }
            retry.failed(now, &mut self.rng);
            self.issue(
                Command::Rewatch { kind },
                CommandPurpose::Rewatch(kind),
                now,
            );
        }
    }

    /// What the listing lacked does exist (the watch starts anew), or does not (it is believed).
    pub(super) fn probed(&mut self, kind: ObjectKind, alive: Option<usize>, now: Timestamp) {
        let asked = self.looking.probes.remove(&kind);
        let asked = asked.filter(|own| own.0 == self.looking.listings(kind));
        match (alive, asked) {
            // A later listing may lack other objects: the next probe asks for these.
            (Some(0), None) => {}
            (Some(0), Some((_, gone))) => {
                self.looking.doubts.remove(&kind);
                if kind == ObjectKind::Node {
                    let names = gone.into_iter().map(|(key, _)| NodeName::from(key.name));
                    self.looking.gone_nodes.extend(names);
                }
                self.looking.probing.remove(&kind);
                self.state.views.believe(kind);
            }
            (Some(_), _) => {
                self.state.views.doubt(kind);
                self.issue(
                    Command::Rewatch { kind },
                    CommandPurpose::Rewatch(kind),
                    now,
                );
                self.looking
                    .probing
                    .entry(kind)
                    .or_default()
                    .failed(now, &mut self.rng);
            }
            (None, _) => self
                .looking
                .probing
                .entry(kind)
                .or_default()
                .failed(now, &mut self.rng),
        }
    }
}
