//! What a keeper asks AWS for again and again, and when each is due.
//! It must not know how any of it is asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ec2::launch_template_cache::KEPT;
use crate::host::clock;
use crate::providers::aws::error::AwsError;

/// What failed is tried again after this long at the earliest.
const RETRY: Duration = Duration::from_secs(55);

/// What is asked for again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefreshTask {
    /// Instance types and where they sell.
    Types,
    /// Subnets, security groups, reservations, placement groups.
    Network,
    /// Zones that traffic is shifted away from.
    Shifts,
    /// Node classes.
    Classes,
    /// Spot prices.
    SpotPrices,
    /// The price list.
    ListPrices,
    /// The status of instances.
    Health,
    /// Launch templates that nobody uses.
    Templates,
    /// Instance profiles that nobody uses.
    Profiles,
}

impl RefreshTask {
    /// How often. Karpenter's (spec/aws.md §0.2) where nothing speaks against it: subnets and
    /// groups change by the week, and what we take of their addresses we know; spot prices by the
    /// hour. Templates are looked for as often as they are kept: what an earlier life of the daemon
    /// left counts from the start of this one, and goes even if no life lasts for long.
    fn every(self) -> Duration {
        match self {
            Self::Types | Self::ListPrices => Duration::from_hours(12),
            Self::Network | Self::Classes => Duration::from_mins(5),
            Self::SpotPrices | Self::Profiles => Duration::from_hours(1),
            Self::Templates => KEPT.unsigned_abs(),
            Self::Health | Self::Shifts => Duration::from_secs(50),
        }
    }

    /// Whom it asks, as IAM calls the service.
    fn service(self) -> &'static str {
        match self {
            Self::ListPrices => "pricing",
            Self::Shifts => "arc-zonal-shift",
            Self::Profiles => "iam",
            _ => "ec2",
        }
    }
}

/// When each chore was done, and when it was last tried.
#[derive(Debug, Default)]
pub(crate) struct RefreshSchedule {
    done: BTreeMap<RefreshTask, Instant>,
    tried: BTreeMap<RefreshTask, Instant>,
}

impl RefreshSchedule {
    /// Whether a chore is due; it counts as tried then.
    pub(crate) fn begin(&mut self, chore: RefreshTask) -> bool {
        let now = clock::monotonic();
        let lately = |at: Option<&Instant>, span: Duration| {
            at.is_some_and(|at| now.duration_since(*at) < span)
        };
        let due =
            !lately(self.done.get(&chore), chore.every()) && !lately(self.tried.get(&chore), RETRY);
        if due {
            self.tried.insert(chore, now);
        }
        due
    }

    /// A chore is done; whether it brought anything new. One that failed leaves what was known.
    pub(crate) fn end(
        &mut self,
        region: &str,
        chore: RefreshTask,
        outcome: Result<bool, AwsError>,
    ) -> bool {
        match outcome {
            Ok(news) => {
                self.done.insert(chore, clock::monotonic());
                news
            }
            Err(fault) => {
                let why = fault.sorted(chore.service()).text;
                tracing::warn!(
                    region,
                    ?chore,
                    why,
                    "what is known of the region gets older"
                );
                false
            }
        }
    }

    /// A chore is not done after all: it is tried again soon.
    pub(crate) fn unsure(&mut self, chore: RefreshTask) {
        self.done.remove(&chore);
    }

    /// A chore is due at once.
    pub(crate) fn again(&mut self, chore: RefreshTask) {
        self.done.remove(&chore);
        self.tried.remove(&chore);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use tokio::time;

    use super::{RefreshSchedule, RefreshTask};
    use crate::ec2::launch_template_cache::LaunchTemplateCache;
    use crate::providers::aws::error::AwsError;

    #[tokio::test(start_paused = true)]
    async fn chores_are_due_at_their_times() {
        let mut diary = RefreshSchedule::default();
        assert!(diary.begin(RefreshTask::Network));
        assert!(!diary.begin(RefreshTask::Network), "it is under way");
        assert!(diary.end("r", RefreshTask::Network, Ok(true)));
        time::advance(Duration::from_secs(299)).await;
        assert!(!diary.begin(RefreshTask::Network));
        time::advance(Duration::from_secs(1)).await;
        assert!(diary.begin(RefreshTask::Network));
        let fault = AwsError::silent("DescribeSubnets", "no answer");
        assert!(!diary.end("r", RefreshTask::Network, Err(fault)));
        time::advance(Duration::from_secs(54)).await;
        assert!(!diary.begin(RefreshTask::Network), "it has just failed");
        time::advance(Duration::from_secs(1)).await;
        assert!(diary.begin(RefreshTask::Network));
        diary.end("r", RefreshTask::Network, Ok(false));
        diary.again(RefreshTask::Network);
        assert!(diary.begin(RefreshTask::Network));
    }

    #[tokio::test(start_paused = true)]
    async fn templates_go_although_the_daemon_starts_anew_every_quarter_of_an_hour() {
        let (mut diary, mut shelf) = (RefreshSchedule::default(), LaunchTemplateCache::default());
        let mut idle = Vec::new();
        for minute in 0..15 {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute);
            if diary.begin(RefreshTask::Templates) {
                shelf.listed(["left".to_owned()], now);
                idle.extend(shelf.idle(now));
                diary.end("r", RefreshTask::Templates, Ok(false));
            }
            time::advance(Duration::from_mins(1)).await;
        }
        assert_eq!(idle, ["left"]);
    }
}
