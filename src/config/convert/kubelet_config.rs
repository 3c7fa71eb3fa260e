//! The fields of `KubeletConfiguration` that a node class passes to the kubelet unchanged, and
//! their types.
//!
//! Source: Kubernetes, `k8s.io/kubelet/config/v1beta1` of July 2026. The kubelet does not start if
//! a field is unknown or has the wrong type, so the node never joins.

use hcl::Value;
use serde_json::Value as Json;

use super::ConversionError;
use super::threshold::parse_threshold;
use crate::config::diagnostic::ProblemCode;
use crate::config::syntax::PathStep;
use crate::config::value::{did_you_mean, quote_value, to_text};
use crate::model::node_class::kubelet::Signal;
use crate::model::quantity::parse_milli;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
enum FieldShape {
    Flag,
    Whole,
    Number,
    Text,
    /// A Go duration such as `1m30s`.
    Duration,
    /// A quantity: a string or a number.
    Quantity,
    /// A string or a number.
    Either,
    List(&'static FieldShape),
    Map(&'static FieldShape),
    /// A map from signals to thresholds.
    Signals,
    Fields(Fields),
}

/// Names of fields, separated by blanks, by their type.
type Fields = &'static [(FieldShape, &'static str)];

const TEXTS: FieldShape = FieldShape::List(&FieldShape::Text);
const TEXT_BY_TEXT: FieldShape = FieldShape::Map(&FieldShape::Text);

static FIELDS: Fields = &[
    (
        FieldShape::Flag,
        "cgroupsPerQOS enableContentionProfiling enableControllerAttachDetach \
         enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableServer \
         enableSystemLogHandler enableSystemLogQuery failCgroupV1 failSwapOn \
         kernelMemcgNotification localStorageCapacityIsolation makeIPTablesUtilChains \
         mergeDefaultEvictionSettings protectKernelDefaults rotateCertificates runOnce \
         seccompDefault serializeImagePulls serverTLSBootstrap singleProcessOOMKill",
    ),
    (
        FieldShape::Whole,
        "containerLogMaxFiles containerLogMaxWorkers eventBurst eventRecordQPS healthzPort \
         iptablesDropBit iptablesMasqueradeBit kubeAPIBurst kubeAPIQPS maxOpenFiles \
         maxParallelImagePulls nodeLeaseDurationSeconds nodeStatusMaxImages oomScoreAdj \
         podPidsLimit port readOnlyPort registryBurst registryPullQPS",
    ),
    (FieldShape::Number, "memoryThrottlingFactor"),
    (
        FieldShape::Text,
        "address cgroupDriver cgroupRoot clusterDomain \
         configMapAndSecretChangeDetectionStrategy containerLogMaxSize \
         containerRuntimeEndpoint contentType cpuManagerPolicy hairpinMode healthzBindAddress \
         imagePullCredentialsVerificationPolicy imageServiceEndpoint kubeletCgroups \
         kubeReservedCgroup memoryManagerPolicy memoryReservationPolicy podCIDR podLogsDir \
         reservedSystemCPUs resolvConf showHiddenMetricsForVersion staticPodPath staticPodURL \
         systemCgroups systemReservedCgroup tlsCertFile tlsMinVersion tlsPrivateKeyFile \
         topologyManagerPolicy topologyManagerScope volumePluginDir",
    ),
    (
        FieldShape::Duration,
        "containerLogMonitorInterval cpuCFSQuotaPeriod cpuManagerReconcilePeriod \
         evictionPressureTransitionPeriod fileCheckFrequency httpCheckFrequency \
         imageMaximumGCAge imageMinimumGCAge nodeStatusReportFrequency \
         nodeStatusUpdateFrequency runtimeRequestTimeout shutdownGracePeriod \
         shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency \
         volumeStatsAggPeriod",
    ),
    (
        TEXTS,
        "allowedUnsafeSysctls enforceNodeAllocatable preloadedImagesVerificationAllowlist \
         tlsCipherSuites",
    ),
    (FieldShape::List(&FieldShape::Whole), "tlsCurvePreferences"),
    (
        TEXT_BY_TEXT,
        "cpuManagerPolicyOptions defaultPodSysctls qosReserved topologyManagerPolicyOptions",
    ),
    (FieldShape::Map(&TEXTS), "staticPodURLHeader"),
    (FieldShape::Map(&FieldShape::Flag), "featureGates"),
    (FieldShape::Signals, "evictionMinimumReclaim"),
    (FieldShape::Fields(AUTHENTICATION), "authentication"),
    (FieldShape::Fields(AUTHORIZATION), "authorization"),
    (FieldShape::Fields(LOGGING), "logging"),
    (FieldShape::Fields(&[(FieldShape::Text, "swapBehavior")]), "memorySwap"),
    (
        FieldShape::Fields(&[(FieldShape::Duration, "maxContainerRestartPeriod")]),
        "crashLoopBackOff",
    ),
    (FieldShape::Fields(&[(FieldShape::Whole, "idsPerPod")]), "userNamespaces"),
    (
        FieldShape::Fields(&[
            (FieldShape::Text, "endpoint"),
            (FieldShape::Whole, "samplingRatePerMillion"),
        ]),
        "tracing",
    ),
    (
        FieldShape::List(&FieldShape::Fields(&[
            (FieldShape::Whole, "numaNode"),
            (FieldShape::Map(&FieldShape::Quantity), "limits"),
        ])),
        "reservedMemory",
    ),
    (
        FieldShape::List(&FieldShape::Fields(&[(
            FieldShape::Whole,
            "priority shutdownGracePeriodSeconds",
        )])),
        "shutdownGracePeriodByPodPriority",
    ),
];

const AUTHENTICATION: Fields = &[
    (FieldShape::Fields(&[(FieldShape::Text, "clientCAFile")]), "x509"),
    (
        FieldShape::Fields(&[(FieldShape::Flag, "enabled"), (FieldShape::Duration, "cacheTTL")]),
        "webhook",
    ),
    (FieldShape::Fields(&[(FieldShape::Flag, "enabled")]), "anonymous"),
];

const AUTHORIZATION: Fields = &[
    (FieldShape::Text, "mode"),
    (
        FieldShape::Fields(&[(FieldShape::Duration, "cacheAuthorizedTTL cacheUnauthorizedTTL")]),
        "webhook",
    ),
];

const LOGGING: Fields = &[
    (FieldShape::Text, "format"),
    (FieldShape::Either, "flushFrequency"),
    (FieldShape::Whole, "verbosity"),
    (
        FieldShape::List(&FieldShape::Fields(&[
            (FieldShape::Text, "filePattern"),
            (FieldShape::Whole, "verbosity"),
        ])),
        "vmodule",
    ),
    (
        FieldShape::Fields(&[(
            FieldShape::Fields(&[
                (FieldShape::Flag, "splitStream"),
                (FieldShape::Quantity, "infoBufferSize"),
            ]),
            "json text",
        )]),
        "options",
    ),
];

/// Fields that are set with a separate argument. The first name of each pair is in
/// `KubeletSettings::MANAGED`.
const ARGUMENTS: [(&str, &str); 12] = [
    ("clusterDNS", "cluster_dns"),
    ("maxPods", "max_pods"),
    ("podsPerCore", "pods_per_core"),
    ("systemReserved", "system_reserved"),
    ("kubeReserved", "kube_reserved"),
    ("evictionHard", "eviction_hard"),
    ("evictionSoft", "eviction_soft"),
    ("evictionSoftGracePeriod", "eviction_soft_grace_period"),
    ("evictionMaxPodGracePeriod", "eviction_max_pod_grace_period"),
    ("imageGCHighThresholdPercent", "image_gc_high_threshold_percent"),
    ("imageGCLowThresholdPercent", "image_gc_low_threshold_percent"),
    ("cpuCFSQuota", "cpu_cfs_quota"),
];

/// Fields that Outrigger sets, and the reason.
const OURS: [(&str, &str); 5] = [
    ("registerWithTaints", "taints are set in the pool"),
    ("registerNode", "every node registers"),
    ("providerID", "it is the id of the instance"),
    ("apiVersion", "Outrigger sets it"),
    ("kind", "Outrigger sets it"),
];

/// Returns a field as JSON, or all errors in it. The paths of errors are relative to the map of
/// fields.
pub(super) fn kubelet_field(name: &str, value: &Value) -> Result<Json, Vec<ConversionError>> {
    if let Some((_, argument)) = ARGUMENTS.iter().find(|(field, _)| *field == name) {
        let detail = format!("{name:?} is set with a separate argument.");
        return Err(field_error(name, detail, Some(format!("write {argument} = …"))));
    }
    if let Some((_, why)) = OURS.iter().find(|(field, _)| *field == name) {
        let detail = format!("{name:?} cannot be set here: {why}.");
        return Err(field_error(name, detail, None));
    }
    let mut faults = Vec::new();
    check_member(FIELDS, name, value, &mut Vec::new(), &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    serde_json::to_value(value)
        .map_err(|_| field_error(name, format!("{name:?} is not valid JSON."), None))
}

/// The error of a field that cannot be set.
fn field_error(name: &str, detail: String, help: Option<String>) -> Vec<ConversionError> {
    vec![ConversionError {
        path: vec![PathStep::KeyItself(name.to_owned())],
        code: ProblemCode::InvalidValue,
        detail,
        help,
    }]
}

fn check_member(
    fields: Fields,
    name: &str,
    value: &Value,
    path: &mut Vec<PathStep>,
    faults: &mut Vec<ConversionError>,
) {
    let known =
        fields.iter().find(|(_, names)| names.split_whitespace().any(|known| known == name));
    if let Some((shape, _)) = known {
        path.push(PathStep::Key(name.to_owned()));
        shape.check(name, value, path, faults);
        path.pop();
        return;
    }
    let names = fields.iter().flat_map(|(_, names)| names.split_whitespace());
    let mut field_path = path.clone();
    field_path.push(PathStep::KeyItself(name.to_owned()));
    faults.push(ConversionError {
        path: field_path,
        code: ProblemCode::UnknownArgument,
        detail: format!("The kubelet configuration has no field {name:?} here."),
        help: did_you_mean(name, names),
    });
}

impl FieldShape {
    fn check(
        self,
        name: &str,
        value: &Value,
        path: &mut Vec<PathStep>,
        faults: &mut Vec<ConversionError>,
    ) {
        let is_valid = match (self, value) {
            (Self::List(inner), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(PathStep::Index(index));
                    inner.check(name, item, path, faults);
                    path.pop();
                }
                true
            }
            (Self::Map(inner), Value::Object(items)) => {
                for (key, item) in items {
                    path.push(PathStep::Key(key.clone()));
                    inner.check(key, item, path, faults);
                    path.pop();
                }
                true
            }
            (Self::Fields(fields), Value::Object(items)) => {
                for (key, item) in items {
                    check_member(fields, key, item, path, faults);
                }
                true
            }
            (Self::Signals, Value::Object(items)) => items.iter().all(|(key, item)| {
                let is_valid = item.as_str().and_then(parse_threshold);
                Signal::parse(key).is_some() && is_valid.is_some()
            }),
            (Self::Flag, Value::Bool(_))
            | (Self::Text, Value::String(_))
            | (Self::Number, Value::Number(_))
            | (Self::Either, Value::String(_) | Value::Number(_)) => true,
            (Self::Whole, Value::Number(number)) => number.as_i64().is_some(),
            (Self::Duration, Value::String(text)) => is_go_duration(text),
            (Self::Quantity, Value::String(_) | Value::Number(_)) => {
                to_text(value).is_some_and(|text| parse_milli(&text).is_ok())
            }
            _ => false,
        };
        if !is_valid {
            faults.push(ConversionError {
                path: path.clone(),
                code: ProblemCode::WrongType,
                detail: format!(
                    "{name:?} must be {}, not {}.",
                    self.expected_type(),
                    quote_value(value)
                ),
                help: None,
            });
        }
    }

    fn expected_type(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "an integer",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::Duration => "a duration such as \"1m30s\"",
            Self::Quantity => "a quantity such as \"1Gi\"",
            Self::Either => "a string or a number",
            Self::List(_) => "a list",
            Self::Map(_) | Self::Fields(_) => "a map",
            Self::Signals => "a map from signals to thresholds",
        }
    }
}

/// Returns whether Go parses a string as a duration that is not negative.
fn is_go_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = &rest[..rest.len() - after.len()];
        let digits = number.bytes().filter(u8::is_ascii_digit).count();
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let left = units.iter().find_map(|unit| {
            let left = after.strip_prefix(unit)?;
            let whole = left.chars().next().is_none_or(|c| c.is_ascii_digit() || c == '.');
            whole.then_some(left)
        });
        match left {
            Some(left) if digits > 0 && number.len() - digits <= 1 => rest = left,
            _ => return text == "0",
        }
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use hcl::{Value, value};

    use super::{ARGUMENTS, FIELDS, FieldShape, Fields, is_go_duration, kubelet_field};
    use crate::model::node_class::kubelet::KubeletSettings;

    #[test]
    fn each_kubelet_field_is_listed_once() {
        assert_eq!(ARGUMENTS.map(|(field, _)| field), KubeletSettings::MANAGED);
        fn names(fields: Fields) -> Vec<&'static str> {
            for (shape, _) in fields {
                if let FieldShape::Fields(inner) | FieldShape::List(FieldShape::Fields(inner)) =
                    shape
                {
                    names(inner);
                }
            }
            let mut all: Vec<&str> =
                fields.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{all:?}");
            all
        }
        // The table has 126 fields, except twelve with separate arguments and three that Outrigger
        // sets.
        assert_eq!(names(FIELDS).len(), 126 - 12 - 3);
    }

    #[test]
    fn kubelet_durations_use_go_syntax() {
        for text in ["0", "0s", "1m30s", "1.5h", ".5s", "10ms", "3µs"] {
            assert!(is_go_duration(text), "{text:?}");
        }
        for text in ["", "1", "-1s", "1d", "s", "1.2.3s", "1h30"] {
            assert!(!is_go_duration(text), "{text:?}");
        }
    }

    const RECLAIM: &str = "\"evictionMinimumReclaim\" must be a map from signals to thresholds, \
                           not a map of 1 element.";

    #[test]
    fn values_must_match_the_type_of_their_field() {
        let check = |name: &str, value: Value, expect: &[&str]| {
            let faults = kubelet_field(name, &value).err().unwrap_or_default();
            let details: Vec<String> = faults.into_iter().map(|fault| fault.detail).collect();
            assert_eq!(details, expect, "{name}");
        };
        check("podPidsLimit", value!(-1), &[]);
        check("podPidsLimit", value!("1"), &["\"podPidsLimit\" must be an integer, not \"1\"."]);
        check(
            "featureGates",
            value!({ A = true, B = 1 }),
            &["\"B\" must be true or false, not 1."],
        );
        check("evictionMinimumReclaim", value!({ "memory.available" = "1Gi" }), &[]);
        check("evictionMinimumReclaim", value!({ memory = "1Gi" }), &[RECLAIM]);
        check(
            "reservedMemory",
            value!([{ numaNode = 0, limits = { memory = "1Gi" } }, { numaNode = 1, limit = {} }]),
            &["The kubelet configuration has no field \"limit\" here."],
        );
        check(
            "logging",
            value!({ options = { json = { infoBufferSize = "x" } }, flushFrequency = "5s" }),
            &["\"infoBufferSize\" must be a quantity such as \"1Gi\", not \"x\"."],
        );
        check(
            "kind",
            value!("KubeletConfiguration"),
            &["\"kind\" cannot be set here: Outrigger sets it."],
        );
    }
}
