//! SDK interceptor of every AWS request: checks that this host still holds the Lease of the cluster
//! (the fence), adds the term to changes for CloudTrail, and counts requests by service and
//! operation for the IAM policy and for idle costs. Reports throttled EC2 calls to the rate limits.

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeTransmitInterceptorContextMut, BeforeTransmitInterceptorContextRef,
    FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use jiff::Timestamp;
use metrics::counter;
use tokio::time::Instant;

use crate::ec2::errors::THROTTLED;
use crate::host::clock;
use crate::outbound::clock_skew::SkewGauge;
use crate::outbound::fence;
use crate::providers::aws::rate_limits::RateLimits;

/// Counts requests, including retries.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    /// The region, as metric label.
    pub(crate) region: String,
    /// Clock skew between this host and AWS.
    pub(crate) skew: SkewGauge,
    /// Learn from the responses of EC2.
    pub(crate) limits: RateLimits,
}

const AGENT: &str = "user-agent";
/// The name of EC2 in the metadata of its operations.
const EC2: &str = "EC2";

/// Send time of an attempt, on both clocks.
#[derive(Clone, Copy, Debug)]
struct Sent(Timestamp, Instant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Recorder {
    fn name(&self) -> &'static str {
        "outrigger::Recorder"
    }

    /// Adds the terms to `User-Agent`, which is not part of the signature.
    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let operation = cfg.load::<Metadata>().map_or("", Metadata::name);
        let marks = match is_change(operation) {
            true => fence::task_marks(),
            false => String::new(),
        };
        if !marks.is_empty() {
            let headers = context.request_mut().headers_mut();
            let agent = headers.get(AGENT).unwrap_or_default();
            let agent = format!("{agent} {marks}");
            headers.try_insert(AGENT, agent.trim_start().to_owned())?;
        }
        Ok(())
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let operation = cfg.load::<Metadata>().map_or("", Metadata::name);
        fence::check_task(is_change(operation))?;
        if let Some(call) = cfg.load::<Metadata>() {
            let (service, operation) = (call.service().to_owned(), call.name().to_owned());
            #[cfg(test)]
            record_permission(&service, &operation);
            counter!(
                "outrigger_aws_requests_total",
                "region" => self.region.clone(), "service" => service, "operation" => operation
            )
            .increment(1);
        }
        cfg.interceptor_state().store_put(Sent(clock::now(), clock::monotonic_now()));
        Ok(())
    }

    /// Records the date of responses, and counts throttled calls, including those that the SDK
    /// retries.
    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (Some(response), Some(&Sent(wall, sent)), Some(call)) =
            (context.response(), cfg.load::<Sent>(), cfg.load::<Metadata>())
        else {
            return Ok(());
        };
        self.skew.record_response(response.headers().get("date"), wall);
        let body = response.body().bytes().filter(|_| !response.status().is_success());
        let throttled = body.is_some_and(is_throttled);
        if throttled {
            counter!(
                "outrigger_ec2_throttled_total",
                "region" => self.region.clone(), "api" => call.name().to_owned()
            )
            .increment(1);
        }
        if call.service() == EC2 && (throttled || response.status().is_success()) {
            self.limits.record_response(&self.region, call.name(), throttled, sent);
        }
        Ok(())
    }
}

/// Returns whether an operation changes anything visible to other hosts.
fn is_change(operation: &str) -> bool {
    // A received or returned message becomes visible to other hosts soon.
    let reads = ["AssumeRole", "Describe", "Get", "List", "Receive"];
    operation != "ChangeMessageVisibility"
        && !reads.iter().any(|prefix| operation.starts_with(prefix))
}

/// Returns whether an error is throttling. Such an error has one code and a short body.
fn is_throttled(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    THROTTLED.iter().any(|code| text.contains(code))
}

/// Records the permission of a call for `tests/moto/rights.py`, once per process.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests read their environment")]
fn record_permission(service: &str, operation: &str) {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::sync::Mutex;

    static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    let Ok(directory) = std::env::var("OUTRIGGER_AWS_RECORD") else {
        return;
    };
    let service = service.to_lowercase().replace(' ', "-");
    let right = format!("{service}:{operation}");
    if !NOTED.lock().expect("no panic").insert(right.clone()) {
        return;
    }
    let path = format!("{directory}/{}.sdk", std::process::id());
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.expect("a file"), "{right}").expect("it is written");
}

#[cfg(test)]
mod tests {
    use super::is_change;

    #[test]
    fn changing_operations_are_distinguished_from_reads() {
        for operation in [
            "CreateFleet",
            "RunInstances",
            "TerminateInstances",
            "CreateTags",
            "CreateLaunchTemplate",
            "DeleteLaunchTemplate",
            "CreateInstanceProfile",
            "AddRoleToInstanceProfile",
            "RemoveRoleFromInstanceProfile",
            "DeleteInstanceProfile",
            "DeleteMessage",
            "SomethingThatIsStillToCome",
            "",
        ] {
            assert!(is_change(operation), "{operation}");
        }
        for operation in [
            "AssumeRole",
            "DescribeInstances",
            "GetParameter",
            "ListInstanceProfiles",
            "ReceiveMessage",
            "ChangeMessageVisibility",
        ] {
            assert!(!is_change(operation), "{operation}");
        }
    }
}
