//! Schedule of the periodic AWS reads of a region task.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ec2::launch_template_cache::KEPT;
use crate::host::clock;
use crate::providers::aws::error::AwsError;

/// Minimum delay before a retry.
const RETRY: Duration = Duration::from_secs(55);

/// A periodic read or cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefreshTask {
    /// Instance types and their zones.
    Types,
    /// Subnets, security groups, reservations, placement groups.
    Network,
    /// Reservations, between the reads of the network.
    Reservations,
    /// Zonal shifts.
    Shifts,
    /// Node classes.
    Classes,
    /// Spot prices.
    SpotPrices,
    /// The price list.
    ListPrices,
    /// The status of instances.
    Health,
    /// Cleanup of unused launch templates.
    Templates,
    /// Cleanup of unused instance profiles.
    Profiles,
}

impl RefreshTask {
    /// Returns the interval, which is Karpenter's in most cases (spec/aws.md §0.2). It is different
    /// for subnets and security groups, which rarely change and whose reserved addresses are
    /// tracked, and for spot prices, which change by the hour. Templates are checked at the
    /// interval after which unused templates expire. For templates of a previous process, this time
    /// begins when this process starts.
    fn refresh_interval(self) -> Duration {
        match self {
            Self::Types | Self::ListPrices => Duration::from_hours(12),
            Self::Network | Self::Classes => Duration::from_mins(5),
            Self::SpotPrices | Self::Profiles => Duration::from_hours(1),
            Self::Templates => KEPT.unsigned_abs(),
            Self::Health | Self::Shifts | Self::Reservations => Duration::from_secs(50),
        }
    }

    /// Returns the AWS service of the calls, in IAM spelling.
    fn aws_service(self) -> &'static str {
        match self {
            Self::ListPrices => "pricing",
            Self::Shifts => "arc-zonal-shift",
            Self::Profiles => "iam",
            _ => "ec2",
        }
    }
}

/// Last completion and last attempt of each read.
#[derive(Debug, Default)]
pub(crate) struct RefreshSchedule {
    done: BTreeMap<RefreshTask, Instant>,
    tried: BTreeMap<RefreshTask, Instant>,
}

impl RefreshSchedule {
    /// Returns whether a read is due. Records an attempt.
    pub(crate) fn begin_if_due(&mut self, task: RefreshTask) -> bool {
        let now = clock::monotonic_now();
        let due = [(self.done.get(&task), task.refresh_interval()), (self.tried.get(&task), RETRY)]
            .iter()
            .all(|(last, interval)| last.is_none_or(|last| now.duration_since(*last) >= *interval));
        if due {
            self.tried.insert(task, now);
        }
        due
    }

    /// Records the result of a read. Returns whether it has new data. A failed read keeps the old
    /// data.
    pub(crate) fn record_result(
        &mut self,
        region: &str,
        task: RefreshTask,
        outcome: Result<bool, AwsError>,
    ) -> bool {
        match outcome {
            Ok(has_new_data) => {
                self.done.insert(task, clock::monotonic_now());
                has_new_data
            }
            Err(fault) => {
                let why = fault.to_failure(task.aws_service()).text;
                tracing::warn!(region, chore = ?task, why, "cannot refresh data of region");
                false
            }
        }
    }

    /// Marks a read as incomplete, so that it is retried soon.
    pub(crate) fn mark_incomplete(&mut self, task: RefreshTask) {
        self.done.remove(&task);
    }

    /// Makes a read due now.
    pub(crate) fn make_due(&mut self, task: RefreshTask) {
        self.done.remove(&task);
        self.tried.remove(&task);
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
    async fn refresh_tasks_are_due_at_their_intervals() {
        let mut schedule = RefreshSchedule::default();
        assert!(schedule.begin_if_due(RefreshTask::Network));
        assert!(!schedule.begin_if_due(RefreshTask::Network), "the task is running");
        assert!(schedule.record_result("r", RefreshTask::Network, Ok(true)));
        time::advance(Duration::from_secs(299)).await;
        assert!(!schedule.begin_if_due(RefreshTask::Network));
        time::advance(Duration::from_secs(1)).await;
        assert!(schedule.begin_if_due(RefreshTask::Network));
        let fault = AwsError::without_response("DescribeSubnets", "no answer");
        assert!(!schedule.record_result("r", RefreshTask::Network, Err(fault)));
        time::advance(Duration::from_secs(54)).await;
        assert!(!schedule.begin_if_due(RefreshTask::Network), "the task has just failed");
        time::advance(Duration::from_secs(1)).await;
        assert!(schedule.begin_if_due(RefreshTask::Network));
        schedule.record_result("r", RefreshTask::Network, Ok(false));
        schedule.make_due(RefreshTask::Network);
        assert!(schedule.begin_if_due(RefreshTask::Network));
    }

    #[tokio::test(start_paused = true)]
    async fn unused_templates_are_removed_despite_frequent_restarts() {
        let (mut schedule, mut cache) =
            (RefreshSchedule::default(), LaunchTemplateCache::default());
        let mut idle = Vec::new();
        for minute in 0..15 {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute);
            if schedule.begin_if_due(RefreshTask::Templates) {
                cache.apply_listing(["left".to_owned()], now);
                idle.extend(cache.idle_templates(now));
                schedule.record_result("r", RefreshTask::Templates, Ok(false));
            }
            time::advance(Duration::from_mins(1)).await;
        }
        assert_eq!(idle, ["left"]);
    }
}
