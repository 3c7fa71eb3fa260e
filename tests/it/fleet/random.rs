//! Random requests, releases and losses in any order: no limit is exceeded, and no cluster waits
//! forever.

use std::collections::BTreeMap;

use outrigger::engine::command::CommandResult;
use proptest::prelude::{Strategy, any};
use proptest::{collection, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::fixture::{Stage, cluster, cores, limits};

const NAMES: [&str; 3] = ["east", "north", "west"];
const CORES: i64 = 20;
const NODES: u32 = 6;

/// An action of a cluster.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Requests a grant for a claim with this many cores.
    Ask(usize, i64),
    /// Reports a claim as ended, or with this many cores.
    Change(usize, i64),
    /// Reports all claims.
    Whole,
    /// Restarts the engine, which then reports all claims.
    Restart,
    /// Waits.
    Wait,
}

fn a_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (0usize..8, 1i64..9).prop_map(|(claim, cores)| Deed::Ask(claim, cores)),
        4 => (0usize..8, 0i64..9).prop_map(|(claim, cores)| Deed::Change(claim, cores)),
        1 => any::<bool>().prop_map(|_| Deed::Whole),
        1 => any::<bool>().prop_map(|_| Deed::Restart),
        1 => any::<bool>().prop_map(|_| Deed::Wait),
    ]
}

/// The actual claims with their cores.
type Truth = BTreeMap<(usize, String), i64>;

fn sum(truth: &Truth) -> (i64, usize) {
    (truth.values().sum(), truth.len())
}

fn all_of(truth: &Truth, of: usize) -> Vec<(&str, outrigger::model::fleet::ClaimUsage)> {
    let own = truth.iter().filter(|((cluster, _), _)| *cluster == of);
    own.map(|((_, claim), own)| (claim.as_str(), cores(*own))).collect()
}

proptest! {
    #[test]
    fn no_limit_is_exceeded_and_nobody_waits_for_ever(
        deeds in collection::vec((0usize..3, a_deed()), 0..120),
    ) {
        let mut stage = Stage::new(limits(CORES, NODES), &NAMES.map(cluster));
        let mut truth = Truth::new();
        for name in NAMES {
            stage.whole(name, &[]);
        }
        let mut denied = 0;
        for (of, deed) in deeds {
            let name = NAMES[of];
            match deed {
                Deed::Ask(claim, wanted) => {
                    let claim = format!("{name}-{claim}");
                    let answer = stage.ask(name, &claim, cores(wanted));
                    let mut after = truth.clone();
                    after.insert((of, claim), wanted);
                    let (used, nodes) = sum(&after);
                    let fits = used <= CORES && nodes <= NODES as usize;
                    prop_assert_eq!(answer == CommandResult::Granted, fits, "{:?}", answer);
                    if fits {
                        truth = after;
                    } else {
                        denied += 1;
                    }
                }
                Deed::Change(claim, left) => {
                    let claim = format!("{name}-{claim}");
                    let key = (of, claim.clone());
                    let Some(had) = truth.get(&key).copied() else {
                        continue;
                    };
                    let left = left.min(had);
                    if left == 0 {
                        truth.remove(&key);
                        stage.changed(name, &claim, None);
                    } else {
                        truth.insert(key, left);
                        stage.changed(name, &claim, Some(cores(left)));
                    }
                }
                Deed::Whole => stage.whole(name, &all_of(&truth, of)),
                Deed::Restart => {
                    stage.fleet.on_engine_start(&name.into(), stage.now);
                    let waits = stage.ask(name, "early", cores(1));
                    prop_assert!(waits != CommandResult::Granted);
                    stage.whole(name, &all_of(&truth, of));
                }
                Deed::Wait => stage.wait(3),
            }
            let (used, nodes) = sum(&truth);
            prop_assert!(used <= CORES && nodes <= NODES as usize, "{:?}", truth);
            for (of, name) in NAMES.iter().enumerate() {
                let own: i64 = all_of(&truth, of).iter().map(|own| own.1.capacity.cpu_milli).sum();
                prop_assert_eq!(stage.fleet.total_usage(&(*name).into()).0.cpu_milli, own);
            }
        }
        // At the end, each cluster knows the remaining share.
        stage.wait(3);
        let (used, nodes) = sum(&truth);
        for (of, name) in NAMES.iter().enumerate() {
            let own = all_of(&truth, of);
            let mine: i64 = own.iter().map(|own| own.1.capacity.cpu_milli / 1000).sum();
            let count = u32::try_from(nodes - own.len()).expect("few");
            prop_assert_eq!(stage.share(name), (CORES - used + mine, Some(NODES - count)));
        }
        // After the release of all claims, every cluster gets everything.
        for (of, claim) in truth.keys() {
            stage.changed(NAMES[*of], claim, None);
        }
        for name in NAMES {
            let granted = stage.ask(name, "all", cores(CORES));
            prop_assert_eq!(granted, CommandResult::Granted, "{}", denied);
            stage.changed(name, "all", None);
        }
    }
}
