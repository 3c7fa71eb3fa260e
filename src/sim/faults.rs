//! The fault plan of a seed: which faults occur, and when. Each seed has a different mix, and no
//! seed has all faults.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Command;
use crate::model::watched_object::ObjectKind;
use crate::sim::event_queue::time_after;
use crate::sim::rng::{draw_chance, duration_between, duration_up_to, random_stream};

/// Fault of a single command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFault {
    /// The command is executed, and the result is returned.
    Carried,
    /// The command is throttled.
    Throttled,
    /// The command is lost before it is executed.
    LostBefore,
    /// The command is executed, and the result is lost.
    LostAfter,
    /// The result of the command never arrives.
    Silent {
        /// Whether the command is executed.
        carried: bool,
    },
    /// Some or all offerings of a launch are unavailable.
    SoldOut {
        /// Number of unavailable offerings, starting with the first offering.
        offerings: usize,
    },
    /// Another client changes the node before the command is executed.
    Overtaken,
    /// The disruption budget blocks the eviction, regardless of its status.
    Blocked,
}

/// Delivery of a command and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTrip {
    /// Time until the command is executed.
    pub there: SignedDuration,
    /// Time until the result arrives.
    pub back: SignedDuration,
    /// The fault of the command.
    pub fate: CommandFault,
    /// Whether the result arrives twice.
    pub twice: bool,
}

/// Size of the missing part of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A few objects are missing. The daemon cannot detect this.
    Mild,
    /// Most of the earlier objects are missing. The daemon must reject such a listing.
    Severe,
}

/// A fault at a scheduled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledFault {
    /// The daemon stops.
    Restart {
        /// Time until the daemon starts again.
        down: SignedDuration,
    },
    /// A watch breaks.
    WatchLost {
        /// Kind of its objects.
        kind: ObjectKind,
        /// Time until the watch restarts.
        lasts: SignedDuration,
        /// Missing part of the listing after the restart, if any.
        cut: Option<Cut>,
    },
    /// A watch delivers no events and does not break.
    Stall {
        /// Kind of its objects.
        kind: ObjectKind,
        /// Duration.
        lasts: SignedDuration,
    },
    /// A spot instance is interrupted.
    Reclaim,
    /// A machine fails without notice.
    Failure,
    /// An external actor deletes a Node.
    NodeDeleted {
        /// Time until its kubelet registers it again. `None` means never.
        back: Option<SignedDuration>,
    },
}

/// Fault rates, per thousand commands or machines.
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

/// The faults of a seed.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    until: Timestamp,
    mix: FaultRates,
    /// Delay of instance listings.
    pub listing_lag: SignedDuration,
    /// All scheduled faults with their times.
    pub scheduled_faults: Vec<(Timestamp, ScheduledFault)>,
    trips: Rng,
    fates: Rng,
    machines: Rng,
    ticks: Rng,
}

/// Wake-ups for sweeps that are lost, repeated or late, each per thousand. All three together are
/// likely, because a cluster has few sweeps.
const TICK_FAULTS: u32 = 200;

/// Maximum delay of a wake-up for a sweep.
const TICK_LATE_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Maximum delay of instance listings. After a start, the engine lists instances twice, 5 s apart.
/// With a longer delay, both listings could miss instances launched before the restart.
const LISTING_LAG_MAX: SignedDuration = SignedDuration::from_secs(4);

/// Maximum number of occurrences of each scheduled fault in a scenario.
const SCHEDULED_FAULTS_MAX: u32 = 5;

impl FaultPlan {
    /// Returns a plan without faults, with normal delays.
    pub fn without_faults(seed: u64) -> Self {
        Self {
            until: Timestamp::MIN,
            mix: FaultRates::default(),
            listing_lag: SignedDuration::from_secs(1),
            scheduled_faults: Vec::new(),
            trips: random_stream(seed, "faults/trips"),
            fates: random_stream(seed, "faults/fates"),
            machines: random_stream(seed, "faults/machines"),
            ticks: random_stream(seed, "faults/ticks"),
        }
    }

    /// Draws the faults of a seed between two times.
    pub fn from_seed(seed: u64, from: Timestamp, until: Timestamp) -> Self {
        let mut rng = random_stream(seed, "faults/mix");
        let mix = FaultRates {
            throttled: draw_rate(&mut rng, 60),
            lost_before: draw_rate(&mut rng, 30),
            lost_after: draw_rate(&mut rng, 40),
            silent: draw_rate(&mut rng, 10),
            slow: draw_rate(&mut rng, 60),
            twice: draw_rate(&mut rng, 30),
            sold_out: draw_rate(&mut rng, 250),
            overtaken: draw_rate(&mut rng, 80),
            untainted: draw_rate(&mut rng, 60),
            blocked: draw_rate(&mut rng, 300),
            mute: draw_rate(&mut rng, 60),
            unready: draw_rate(&mut rng, 50),
        };
        let mut lags = random_stream(seed, "faults/lags");
        Self {
            until,
            mix,
            listing_lag: duration_up_to(&mut lags, LISTING_LAG_MAX),
            scheduled_faults: draw_scheduled_faults(seed, from, until),
            ..Self::without_faults(seed)
        }
    }

    /// Draws the delivery of a command sent now.
    pub fn draw_trip(&mut self, command: &Command, now: Timestamp) -> CommandTrip {
        let ms = SignedDuration::from_millis;
        let rng = &mut self.trips;
        let (mut delay_there, mut back) = match command {
            Command::Launch(_) => {
                (duration_between(rng, ms(200), ms(900)), duration_between(rng, ms(400), ms(2500)))
            }
            Command::Terminate { .. } | Command::ListInstances => {
                (duration_between(rng, ms(20), ms(150)), duration_between(rng, ms(50), ms(400)))
            }
            _ => (duration_between(rng, ms(2), ms(20)), duration_between(rng, ms(2), ms(30))),
        };
        if now >= self.until {
            return CommandTrip {
                there: delay_there,
                back,
                fate: CommandFault::Carried,
                twice: false,
            };
        }
        let rng = &mut self.fates;
        if draw_chance(rng, self.mix.slow) {
            delay_there += duration_up_to(rng, ms(20_000));
            back += duration_up_to(rng, ms(20_000));
        }
        let fate = draw_fate(&self.mix, command, rng);
        if matches!(fate, CommandFault::LostBefore | CommandFault::LostAfter) {
            // The command times out.
            back = duration_between(rng, ms(10_000), ms(30_000));
        }
        CommandTrip { there: delay_there, back, fate, twice: draw_chance(rng, self.mix.twice) }
    }

    /// Draws the delays after which a wake-up for a sweep at this time arrives: none if it is lost.
    pub fn draw_tick(&mut self, at: Timestamp) -> Vec<SignedDuration> {
        let on_time = SignedDuration::ZERO;
        if at >= self.until {
            return vec![on_time];
        }
        let rng = &mut self.ticks;
        if draw_chance(rng, TICK_FAULTS) {
            return Vec::new();
        }
        if draw_chance(rng, TICK_FAULTS) {
            return vec![on_time, duration_up_to(rng, TICK_LATE_MAX)];
        }
        if draw_chance(rng, TICK_FAULTS) {
            return vec![duration_up_to(rng, TICK_LATE_MAX)];
        }
        vec![on_time]
    }

    /// Draws whether an external actor removes the taint of a disrupted node, and after which time.
    pub fn draw_untaint(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let rng = &mut self.machines;
        let meddles = now < self.until && draw_chance(rng, self.mix.untainted);
        meddles.then(|| {
            duration_between(rng, SignedDuration::from_millis(500), SignedDuration::from_secs(8))
        })
    }

    /// Draws whether the kubelet of a machine that boots now never registers.
    pub fn draw_mute(&mut self, now: Timestamp) -> bool {
        now < self.until && draw_chance(&mut self.machines, self.mix.mute)
    }

    /// Draws whether a node that registers now never becomes ready.
    pub fn draw_unready(&mut self, now: Timestamp) -> bool {
        now < self.until && draw_chance(&mut self.machines, self.mix.unready)
    }
}

/// Draws the rate of a fault. Each kind of fault is disabled in about a third of the seeds. A fault
/// that always occurs would hide bugs that only appear without it.
fn draw_rate(rng: &mut Rng, max: u32) -> u32 {
    if rng.u32(0..3) == 0 { 0 } else { rng.u32(1..=max) }
}

fn draw_fate(mix: &FaultRates, command: &Command, rng: &mut Rng) -> CommandFault {
    if draw_chance(rng, mix.throttled) {
        return CommandFault::Throttled;
    }
    if draw_chance(rng, mix.lost_before) {
        return CommandFault::LostBefore;
    }
    if draw_chance(rng, mix.lost_after) {
        return CommandFault::LostAfter;
    }
    if draw_chance(rng, mix.silent) {
        return CommandFault::Silent { carried: rng.bool() };
    }
    match command {
        Command::Launch(launch) if draw_chance(rng, mix.sold_out) => {
            let mut offerings = launch.offerings.len();
            if !rng.bool() {
                offerings = rng.usize(1..=offerings.max(1));
            }
            CommandFault::SoldOut { offerings }
        }
        Command::PatchNode(_) if draw_chance(rng, mix.overtaken) => CommandFault::Overtaken,
        Command::Evict { .. } if draw_chance(rng, mix.blocked) => CommandFault::Blocked,
        _ => CommandFault::Carried,
    }
}

fn draw_scheduled_faults(
    seed: u64,
    from: Timestamp,
    until: Timestamp,
) -> Vec<(Timestamp, ScheduledFault)> {
    let mut rng = random_stream(seed, "faults/mishaps");
    let span = until.duration_since(from);
    let mut faults = Vec::new();
    let seconds = SignedDuration::from_secs;
    for kind in 0..7 {
        let count = if rng.bool() { rng.u32(1..=SCHEDULED_FAULTS_MAX) } else { 0 };
        for _ in 0..count {
            let at = time_after(from, duration_up_to(&mut rng, span));
            let mishap = match kind {
                0 => ScheduledFault::Restart {
                    down: duration_between(&mut rng, seconds(1), seconds(90)),
                },
                1 => ScheduledFault::WatchLost {
                    kind: draw_kind(&mut rng),
                    lasts: duration_between(&mut rng, seconds(1), seconds(300)),
                    cut: None,
                },
                2 => ScheduledFault::WatchLost {
                    kind: if rng.bool() { ObjectKind::Pod } else { ObjectKind::Node },
                    lasts: duration_between(&mut rng, seconds(1), seconds(60)),
                    cut: Some(if rng.bool() { Cut::Mild } else { Cut::Severe }),
                },
                3 => ScheduledFault::Stall {
                    kind: draw_kind(&mut rng),
                    lasts: duration_between(&mut rng, seconds(5), seconds(300)),
                },
                4 => ScheduledFault::Reclaim,
                5 => ScheduledFault::Failure,
                _ => ScheduledFault::NodeDeleted {
                    back: rng.bool().then(|| duration_between(&mut rng, seconds(5), seconds(100))),
                },
            };
            faults.push((at, mishap));
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// Draws a kind that every cluster watches. Pods and nodes are more likely.
fn draw_kind(rng: &mut Rng) -> ObjectKind {
    match rng.u32(0..4) {
        0 | 1 => ObjectKind::Pod,
        2 => ObjectKind::Node,
        _ => ObjectKind::ALL[rng.usize(0..ObjectKind::ALWAYS)],
    }
}
