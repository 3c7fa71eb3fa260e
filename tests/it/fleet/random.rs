//! Random requests, releases and losses in any order: no limit is exceeded, and no cluster waits
//! forever.

use std::collections::BTreeMap;

use outrigger::provider::CommandResult;
use proptest::prelude::{Strategy, any};
use proptest::{collection, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::fixture::{Stage, cluster, cores, limits};

const NAMES: [&str; 3] = ["east", "north", "west"];
const CORES: i64 = 20;
const NODES: u32 = 6;

/// An action of a cluster.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Requests a grant for a claim with this many cores.
    Request(usize, i64),
    /// Reports a claim as ended, or with this many cores.
    Change(usize, i64),
    /// Reports all claims.
    ReportAll,
    /// Restarts the engine, which then reports all claims.
    Restart,
    /// Waits.
    Wait,
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0usize..8, 1i64..9).prop_map(|(claim, cores)| Action::Request(claim, cores)),
        4 => (0usize..8, 0i64..9).prop_map(|(claim, cores)| Action::Change(claim, cores)),
        1 => any::<bool>().prop_map(|_| Action::ReportAll),
        1 => any::<bool>().prop_map(|_| Action::Restart),
        1 => any::<bool>().prop_map(|_| Action::Wait),
    ]
}

/// The actual claims with their cores.
type Usage = BTreeMap<(usize, String), i64>;

fn sum(usage: &Usage) -> (i64, usize) {
    (usage.values().sum(), usage.len())
}

fn all_of(usage: &Usage, index: usize) -> Vec<(&str, outrigger::model::fleet::ClaimUsage)> {
    let own = usage.iter().filter(|((cluster, _), _)| *cluster == index);
    own.map(|((_, claim), own)| (claim.as_str(), cores(*own))).collect()
}

proptest! {
    #[test]
    fn random_requests_exceed_no_limit_and_are_finally_granted(
        actions in collection::vec((0usize..3, any_action()), 0..120),
    ) {
        let mut stage = Stage::new(limits(CORES, NODES), &NAMES.map(cluster));
        let mut usage = Usage::new();
        for name in NAMES {
            stage.report_all(name, &[]);
        }
        let mut denied = 0;
        for (index, action) in actions {
            let name = NAMES[index];
            match action {
                Action::Request(claim, wanted) => {
                    let claim = format!("{name}-{claim}");
                    let answer = stage.request_grant(name, &claim, cores(wanted));
                    let mut after = usage.clone();
                    after.insert((index, claim), wanted);
                    let (used, nodes) = sum(&after);
                    let fits = used <= CORES && nodes <= NODES as usize;
                    prop_assert_eq!(answer == CommandResult::Granted, fits, "{:?}", answer);
                    if fits {
                        usage = after;
                    } else {
                        denied += 1;
                    }
                }
                Action::Change(claim, left) => {
                    let claim = format!("{name}-{claim}");
                    let key = (index, claim.clone());
                    let Some(had) = usage.get(&key).copied() else {
                        continue;
                    };
                    let left = left.min(had);
                    if left == 0 {
                        usage.remove(&key);
                        stage.report_change(name, &claim, None);
                    } else {
                        usage.insert(key, left);
                        stage.report_change(name, &claim, Some(cores(left)));
                    }
                }
                Action::ReportAll => stage.report_all(name, &all_of(&usage, index)),
                Action::Restart => {
                    stage.fleet.on_engine_start(&name.into(), stage.now);
                    let waits = stage.request_grant(name, "early", cores(1));
                    prop_assert!(waits != CommandResult::Granted);
                    stage.report_all(name, &all_of(&usage, index));
                }
                Action::Wait => stage.advance(3),
            }
            let (used, nodes) = sum(&usage);
            prop_assert!(used <= CORES && nodes <= NODES as usize, "{:?}", usage);
            for (index, name) in NAMES.iter().enumerate() {
                let own: i64 = all_of(&usage, index).iter().map(|it| it.1.capacity.cpu_milli).sum();
                prop_assert_eq!(stage.fleet.total_usage(&(*name).into()).0.cpu_milli, own);
            }
        }
        // At the end, each cluster knows the remaining share.
        stage.advance(3);
        let (used, nodes) = sum(&usage);
        for (index, name) in NAMES.iter().enumerate() {
            let own = all_of(&usage, index);
            let mine: i64 = own.iter().map(|own| own.1.capacity.cpu_milli / 1000).sum();
            let count = u32::try_from(nodes - own.len()).expect("few");
            prop_assert_eq!(stage.share(name), (CORES - used + mine, Some(NODES - count)));
        }
        // After the release of all claims, every cluster gets everything.
        for (index, claim) in usage.keys() {
            stage.report_change(NAMES[*index], claim, None);
        }
        for name in NAMES {
            let granted = stage.request_grant(name, "all", cores(CORES));
            prop_assert_eq!(granted, CommandResult::Granted, "{}", denied);
            stage.report_change(name, "all", None);
        }
    }
}
