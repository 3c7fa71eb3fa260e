//! Watches between cluster and daemon. Events of a watch are in order. A watch can be delayed,
//! break, or return an incomplete listing.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::engine::event::Event;
use crate::model::watched_object::ObjectKind;

/// Completeness of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The listing is complete, or too few objects are missing for the daemon to detect this.
    Whole,
    /// The listing misses most objects, so the daemon must reject it.
    Cut,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    up: bool,
    /// Events in flight, each with the completeness of a full listing.
    queue: VecDeque<(Timestamp, Event, Option<Listing>)>,
    stalled: Option<Timestamp>,
    last_due: Option<Timestamp>,
    heard: Option<Timestamp>,
    doubtful: Option<&'static str>,
}

/// All watches of a daemon.
#[derive(Clone, Debug)]
pub struct SimWatches {
    streams: BTreeMap<ObjectKind, Stream>,
}

/// Maximum time without an event or bookmark until a watch is stale: twice the minute within which
/// API servers send bookmarks.
pub const SILENT_MAX: SignedDuration = SignedDuration::from_secs(120);

impl SimWatches {
    /// Creates watches of these kinds. All watches are down.
    pub fn new(kinds: &[ObjectKind]) -> Self {
        Self { streams: kinds.iter().map(|kind| (*kind, Stream::default())).collect() }
    }

    /// Sends a change that arrives at `due`, unless the watch is broken.
    pub fn send_change(&mut self, kind: ObjectKind, event: Event, due: Timestamp) {
        self.push_event(kind, event, None, due);
    }

    fn push_event(
        &mut self,
        kind: ObjectKind,
        event: Event,
        listing: Option<Listing>,
        due: Timestamp,
    ) {
        let stream = self.streams.entry(kind).or_default();
        if !stream.up {
            return;
        }
        let due = stream.stalled.map_or(due, |until| due.max(until));
        let due = stream.last_due.map_or(due, |last| last.max(due));
        stream.last_due = Some(due);
        stream.queue.push_back((due, event, listing));
    }

    /// Starts or restarts a watch with a full listing.
    pub fn start_listing(
        &mut self,
        event: Event,
        kind: ObjectKind,
        listing: Listing,
        at: Timestamp,
    ) {
        let stream = self.streams.entry(kind).or_default();
        stream.up = true;
        stream.stalled = None;
        stream.last_due = None;
        stream.queue.clear();
        self.push_event(kind, event, Some(listing), at);
    }

    /// Breaks a watch. Events in flight are lost, and the daemon is notified immediately.
    pub fn break_watch(&mut self, kind: ObjectKind, now: Timestamp) {
        let stream = self.streams.entry(kind).or_default();
        stream.queue.clear();
        stream.last_due = None;
        stream.stalled = None;
        let event = Event::WatchLost(kind, String::new());
        self.send_change(kind, event, now);
        self.streams.entry(kind).or_default().up = false;
    }

    /// Returns true if the watch is up.
    pub fn is_up(&self, kind: ObjectKind) -> bool {
        self.streams.get(&kind).is_some_and(|stream| stream.up)
    }

    /// Delays all events of a watch until a time, without an error.
    pub fn stall_watch(&mut self, kind: ObjectKind, until: Timestamp) {
        self.streams.entry(kind).or_default().stalled = Some(until);
    }

    /// Ends all watches when the daemon stops.
    pub fn end_all(&mut self) {
        self.streams.values_mut().for_each(|stream| *stream = Stream::default());
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.streams.values().filter_map(|stream| stream.queue.front().map(|(due, ..)| *due)).min()
    }

    /// Returns the next event that arrives by `now`.
    pub fn next_event(&mut self, now: Timestamp) -> Option<Event> {
        let stream = self
            .streams
            .values_mut()
            .filter(|stream| stream.queue.front().is_some_and(|(due, ..)| *due <= now))
            .min_by_key(|stream| stream.queue.front().map(|(due, ..)| *due))?;
        let (_, event, listing) = stream.queue.pop_front()?;
        stream.heard = Some(now);
        match (&event, listing) {
            (Event::WatchLost(..), _) => stream.doubtful = Some("broke"),
            (_, Some(Listing::Whole)) => stream.doubtful = None,
            (_, Some(Listing::Cut)) => stream.doubtful = Some("lacks most objects"),
            _ => {}
        }
        Some(event)
    }

    /// Reason why the cluster state is out of sync: a watch is broken, incomplete, or stale.
    pub fn sync_doubt(&self, now: Timestamp) -> Option<(ObjectKind, &'static str)> {
        self.streams.iter().find_map(|(kind, stream)| {
            let silent = match stream.heard {
                None => Some("has delivered nothing yet"),
                Some(heard) => (now.duration_since(heard) > SILENT_MAX).then_some("is silent"),
            };
            stream.doubtful.or(silent).map(|why| (*kind, why))
        })
    }
}
