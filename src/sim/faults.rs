//! What goes wrong and when, drawn from the seed: each seed has its own mix, and none has it all.
//! It must not know how a fault is brought about.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Command;
use crate::model::watched_object::ObjectKind;
use crate::sim::event_queue::later;
use crate::sim::rng::{between, happens, stream, up_to};

/// What becomes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFault {
    /// It is carried out, and answered.
    Carried,
    /// It is turned away: too many requests.
    Throttled,
    /// It gets lost on the way there.
    LostBefore,
    /// It is carried out, and the answer gets lost.
    LostAfter,
    /// It is carried out or not, and nobody ever says so.
    Silent {
        /// Whether it is carried out.
        carried: bool,
    },
    /// Some offerings are sold out by the time a launch arrives; all of them, if so said.
    SoldOut {
        /// How many of the first.
        offerings: usize,
    },
    /// Someone else writes the node first.
    Overtaken,
    /// The disruption budget says no, whatever it said before.
    Blocked,
}

/// A command's way there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTrip {
    /// Time until it arrives.
    pub there: SignedDuration,
    /// Time until the answer arrives.
    pub back: SignedDuration,
    /// What becomes of it.
    pub fate: CommandFault,
    /// Whether the answer comes twice.
    pub twice: bool,
}

/// How much a listing lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A few objects: nobody can tell from the listing.
    Mild,
    /// Most of what was there before: such a listing must not be believed.
    Severe,
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledFault {
    /// The daemon dies.
    Restart {
        /// For this long.
        down: SignedDuration,
    },
    /// A watch breaks.
    WatchLost {
        /// Of this kind.
        kind: ObjectKind,
        /// For this long.
        lasts: SignedDuration,
        /// Whether the listing after that lacks objects.
        cut: Option<Cut>,
    },
    /// A watch falls silent without breaking.
    Stall {
        /// Of this kind.
        kind: ObjectKind,
        /// For this long.
        lasts: SignedDuration,
    },
    /// A spot instance is taken back.
    Reclaim,
    /// A machine fails without a word.
    Failure,
    /// Someone deletes a Node object.
    NodeDeleted {
        /// When its kubelet registers it anew, if ever.
        back: Option<SignedDuration>,
    },
}

/// Rates in thousandths of all commands or machines.
#[derive(Clone, Copy, Debug, Default)]
struct FaultRates {
    throttled: u32,
    lost_before: u32,
    lost_after: u32,
    silent: u32,
    slow: u32,
    twice: u32,
    sold_out: u32,
    overtaken: u32,
    untainted: u32,
    blocked: u32,
    mute: u32,
    unready: u32,
}

/// The faults of one seed.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    until: Timestamp,
    mix: FaultRates,
    listing_lag: SignedDuration,
    scheduled_faults: Vec<(Timestamp, ScheduledFault)>,
    trips: Rng,
    fates: Rng,
    machines: Rng,
}

/// Listings lag by at most this: after a start the engine asks twice, 5 s apart, and a lag beyond
/// that would hide from both what an earlier life launched.
const LISTING_LAG_MAX: SignedDuration = SignedDuration::from_secs(4);

/// Each kind of mishap happens up to this often in a scenario.
const SCHEDULED_FAULTS_MAX: u32 = 5;

impl FaultPlan {
    /// No fault at all: only the usual delays.
    pub fn none(seed: u64) -> Self {
        Self {
            until: Timestamp::MIN,
            mix: FaultRates::default(),
            listing_lag: SignedDuration::from_secs(1),
            scheduled_faults: Vec::new(),
            trips: stream(seed, "faults/trips"),
            fates: stream(seed, "faults/fates"),
            machines: stream(seed, "faults/machines"),
        }
    }

    /// The faults of a seed between two times.
    pub fn drawn(seed: u64, from: Timestamp, until: Timestamp) -> Self {
        let mut rng = stream(seed, "faults/mix");
        // Every kind of fault is left out of about every third seed: a fault that is always there
        // hides those that show only without it.
        let mut rate = |most: u32| {
            if rng.u32(0..3) == 0 {
                0
            } else {
                rng.u32(1..=most)
            }
        };
        let mix = FaultRates {
            throttled: rate(60),
            lost_before: rate(30),
            lost_after: rate(40),
            silent: rate(10),
            slow: rate(60),
            twice: rate(30),
            sold_out: rate(250),
            overtaken: rate(80),
            untainted: rate(60),
            blocked: rate(300),
            mute: rate(60),
            unready: rate(50),
        };
        let mut lags = stream(seed, "faults/lags");
        Self {
            until,
            mix,
            listing_lag: up_to(&mut lags, LISTING_LAG_MAX),
            scheduled_faults: draw_scheduled_faults(seed, from, until),
            ..Self::none(seed)
        }
    }

    /// How far listings of instances lag.
    pub fn listing_lag(&self) -> SignedDuration {
        self.listing_lag
    }

    /// When the last fault may happen.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// All mishaps with their times.
    pub fn scheduled_faults(&self) -> &[(Timestamp, ScheduledFault)] {
        &self.scheduled_faults
    }

    /// What becomes of a command that is sent now.
    pub fn trip(&mut self, command: &Command, now: Timestamp) -> CommandTrip {
        let ms = SignedDuration::from_millis;
        let rng = &mut self.trips;
        let (mut there, mut back) = match command {
            Command::Launch(_) => (
                between(rng, ms(200), ms(900)),
                between(rng, ms(400), ms(2500)),
            ),
            Command::Terminate { .. } | Command::ListInstances => {
                (between(rng, ms(20), ms(150)), between(rng, ms(50), ms(400)))
            }
            _ => (between(rng, ms(2), ms(20)), between(rng, ms(2), ms(30))),
        };
        if now >= self.until {
            return CommandTrip {
                there,
                back,
                fate: CommandFault::Carried,
                twice: false,
            };
        }
        let rng = &mut self.fates;
        if happens(rng, self.mix.slow) {
            there += up_to(rng, ms(20_000));
            back += up_to(rng, ms(20_000));
        }
        let fate = draw_fate(&self.mix, command, rng);
        if matches!(fate, CommandFault::LostBefore | CommandFault::LostAfter) {
            // Whoever carries commands out gives up on them after a while.
            back = between(rng, ms(10_000), ms(30_000));
        }
        CommandTrip {
            there,
            back,
            fate,
            twice: happens(rng, self.mix.twice),
        }
    }

    /// Whether someone takes the taint of a leaving node away, and after how long.
    pub fn untaints(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let rng = &mut self.machines;
        let meddles = now < self.until && happens(rng, self.mix.untainted);
        meddles.then(|| {
            between(
                rng,
                SignedDuration::from_millis(500),
                SignedDuration::from_secs(8),
            )
        })
    }

    /// Whether a machine that boots now stays mute: its kubelet never registers.
    pub fn stays_mute(&mut self, now: Timestamp) -> bool {
        now < self.until && happens(&mut self.machines, self.mix.mute)
    }

    /// Whether a node that registers now never gets ready.
    pub fn stays_unready(&mut self, now: Timestamp) -> bool {
        now < self.until && happens(&mut self.machines, self.mix.unready)
    }
}

fn draw_fate(mix: &FaultRates, command: &Command, rng: &mut Rng) -> CommandFault {
    if happens(rng, mix.throttled) {
        return CommandFault::Throttled;
    }
    if happens(rng, mix.lost_before) {
        return CommandFault::LostBefore;
    }
    if happens(rng, mix.lost_after) {
        return CommandFault::LostAfter;
    }
    if happens(rng, mix.silent) {
        return CommandFault::Silent {
            carried: rng.bool(),
        };
    }
    match command {
        Command::Launch(launch) if happens(rng, mix.sold_out) => {
            let all = launch.offerings.len();
            let some = if rng.bool() {
                all
            } else {
                rng.usize(1..=all.max(1))
            };
            CommandFault::SoldOut { offerings: some }
        }
        Command::PatchNode(_) if happens(rng, mix.overtaken) => CommandFault::Overtaken,
        Command::Evict { .. } if happens(rng, mix.blocked) => CommandFault::Blocked,
        _ => CommandFault::Carried,
    }
}

fn draw_scheduled_faults(
    seed: u64,
    from: Timestamp,
    until: Timestamp,
) -> Vec<(Timestamp, ScheduledFault)> {
    let mut rng = stream(seed, "faults/mishaps");
    let span = until.duration_since(from);
    let mut all = Vec::new();
    let seconds = SignedDuration::from_secs;
    for kind in 0..7 {
        let count = if rng.bool() {
            rng.u32(1..=SCHEDULED_FAULTS_MAX)
        } else {
            0
        };
        for _ in 0..count {
            let at = later(from, up_to(&mut rng, span));
            let mishap = match kind {
                0 => ScheduledFault::Restart {
                    down: between(&mut rng, seconds(1), seconds(90)),
                },
                1 => ScheduledFault::WatchLost {
                    kind: any_kind(&mut rng),
                    lasts: between(&mut rng, seconds(1), seconds(300)),
                    cut: None,
                },
                2 => ScheduledFault::WatchLost {
                    kind: if rng.bool() {
                        ObjectKind::Pod
                    } else {
                        ObjectKind::Node
                    },
                    lasts: between(&mut rng, seconds(1), seconds(60)),
                    cut: Some(if rng.bool() { Cut::Mild } else { Cut::Severe }),
                },
                3 => ScheduledFault::Stall {
                    kind: any_kind(&mut rng),
                    lasts: between(&mut rng, seconds(5), seconds(300)),
                },
                4 => ScheduledFault::Reclaim,
                5 => ScheduledFault::Failure,
                _ => ScheduledFault::NodeDeleted {
                    back: rng
                        .bool()
                        .then(|| between(&mut rng, seconds(5), seconds(100))),
                },
            };
            all.push((at, mishap));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Pods and nodes more often than the rest, of those that are watched in every cluster.
fn any_kind(rng: &mut Rng) -> ObjectKind {
    match rng.u32(0..4) {
        0 | 1 => ObjectKind::Pod,
        2 => ObjectKind::Node,
        _ => ObjectKind::ALL[rng.usize(0..ObjectKind::ALWAYS)],
    }
}
