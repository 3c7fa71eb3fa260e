//! The watches between cluster and daemon: each keeps its order, and each can lag, break or lie.
//! It must not know what the objects are.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::engine::event::Event;
use crate::model::watched_object::ObjectKind;
use crate::sim::event_queue::later;

/// How much of the truth a listing tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// All of it.
    Whole,
    /// So little that it must not be believed.
    Cut,
}

/// One event on its way.
#[derive(Clone, Debug)]
pub struct EventDelivery {
    /// Of this kind.
    pub kind: ObjectKind,
    /// What is told.
    pub event: Event,
    /// For a full listing, how much of the truth it tells.
    pub listing: Option<Listing>,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    up: bool,
    queue: VecDeque<(Timestamp, EventDelivery)>,
    stalled: Option<Timestamp>,
    last_due: Option<Timestamp>,
    heard: Option<Timestamp>,
    doubtful: Option<&'static str>,
}

/// All watches of one daemon.
#[derive(Clone, Debug)]
pub struct SimWatches {
    streams: BTreeMap<ObjectKind, Stream>,
}

/// A watch that told nothing for this long, not even that it lives, is stale: twice the minute
/// within which API servers send bookmarks.
pub const SILENT_MAX: SignedDuration = SignedDuration::from_secs(120);

impl SimWatches {
    /// Watches of these kinds, none of which is up.
    pub fn new(kinds: &[ObjectKind]) -> Self {
        let down = |kind: &ObjectKind| (*kind, Stream::default());
        Self {
            streams: kinds.iter().map(down).collect(),
        }
    }

    /// Tells of a change, unless the watch is broken.
    pub fn tell(&mut self, kind: ObjectKind, event: Event, now: Timestamp, delay: SignedDuration) {
        self.push(
            EventDelivery {
                kind,
                event,
                listing: None,
            },
            now,
            delay,
        );
    }

    fn push(&mut self, delivery: EventDelivery, now: Timestamp, delay: SignedDuration) {
        let stream = self.streams.entry(delivery.kind).or_default();
        if !stream.up {
            return;
        }
        let due = later(now, delay).max(stream.stalled.unwrap_or(now));
        let due = stream.last_due.map_or(due, |last| last.max(due));
        stream.last_due = Some(due);
        stream.queue.push_back((due, delivery));
    }

    /// Starts a watch, or starts it anew, with a full listing.
    pub fn list(&mut self, event: Event, kind: ObjectKind, whole: Listing, at: Timestamp) {
        let stream = self.streams.entry(kind).or_default();
        stream.up = true;
        stream.stalled = None;
        stream.last_due = None;
        stream.queue.clear();
        self.push(
            EventDelivery {
                kind,
                event,
                listing: Some(whole),
            },
            at,
            SignedDuration::ZERO,
        );
    }

    /// Breaks a watch: what was on its way is lost, and that it broke is told at once.
    pub fn lose(&mut self, kind: ObjectKind, now: Timestamp) {
        let stream = self.streams.entry(kind).or_default();
        stream.queue.clear();
        stream.last_due = None;
        stream.stalled = None;
        let event = Event::WatchLost(kind, String::new());
        self.push(
            EventDelivery {
                kind,
                event,
                listing: None,
            },
            now,
            SignedDuration::ZERO,
        );
        self.streams.entry(kind).or_default().up = false;
    }

    /// Whether a watch is up.
    pub fn is_up(&self, kind: ObjectKind) -> bool {
        self.streams.get(&kind).is_some_and(|stream| stream.up)
    }

    /// Holds everything back until a time, without a word.
    pub fn stall(&mut self, kind: ObjectKind, until: Timestamp) {
        self.streams.entry(kind).or_default().stalled = Some(until);
    }

    /// Ends all watches: nobody listens any more.
    pub fn end(&mut self) {
        self.streams
            .values_mut()
            .for_each(|own| *own = Stream::default());
    }

    /// When the next event arrives.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.streams
            .values()
            .filter_map(|s| s.queue.front().map(|(due, _)| *due))
            .min()
    }

    /// The next event that arrives by `now`.
    pub fn deliver(&mut self, now: Timestamp) -> Option<EventDelivery> {
        let stream = self
            .streams
            .values_mut()
            .filter(|stream| stream.queue.front().is_some_and(|(due, _)| *due <= now))
            .min_by_key(|stream| stream.queue.front().map(|(due, _)| *due))?;
        let (_, delivery) = stream.queue.pop_front()?;
        stream.heard = Some(now);
        match (&delivery.event, delivery.listing) {
            (Event::WatchLost(..), _) => stream.doubtful = Some("broke"),
            (_, Some(Listing::Whole)) => stream.doubtful = None,
            (_, Some(Listing::Cut)) => stream.doubtful = Some("lacks most objects"),
            _ => {}
        }
        Some(delivery)
    }

    /// Why what was told must not be acted upon: a watch broke, lies, or is silent.
    pub fn doubt(&self, now: Timestamp) -> Option<(ObjectKind, &'static str)> {
        self.streams.iter().find_map(|(kind, stream)| {
            let silent = match stream.heard {
                None => Some("has not told anything yet"),
                Some(heard) => (now.duration_since(heard) > SILENT_MAX).then_some("is silent"),
            };
            stream.doubtful.or(silent).map(|why| (*kind, why))
        })
    }
}
