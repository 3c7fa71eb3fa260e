//! Converts kubelet settings, and rejects those that the image family does not support.
//!
//! Source: spec/aws.md §1.3. Karpenter detects unsupported settings only when it uses the class,
//! and then marks the class as not ready.

use core::net::IpAddr;

use super::report_argument;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::report::error_at;
use crate::config::syntax::PathStep;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::kubelet::KubeletSettings;

pub(super) fn lower_kubelet(section: &DecodedBlock, family: AmiFamily) -> KubeletSettings {
    let Some(inner) = section.block("kubelet") else {
        return KubeletSettings::default();
    };
    check_soft(inner);
    check_images(inner);
    check_family(inner, family);
    KubeletSettings {
        cluster_dns: cluster_dns(inner),
        max_pods: inner.count("max_pods"),
        pods_per_core: inner.count("pods_per_core"),
        system_reserved: inner.reserved_resources("system_reserved"),
        kube_reserved: inner.reserved_resources("kube_reserved"),
        eviction_hard: inner.eviction_thresholds("eviction_hard"),
        eviction_soft: inner.eviction_thresholds("eviction_soft"),
        eviction_soft_grace_period: inner.grace_periods("eviction_soft_grace_period"),
        eviction_max_pod_grace_period: inner.count("eviction_max_pod_grace_period"),
        image_gc_high_threshold_percent: inner.small_count("image_gc_high_threshold_percent"),
        image_gc_low_threshold_percent: inner.small_count("image_gc_low_threshold_percent"),
        cpu_cfs_quota: inner.flag("cpu_cfs_quota"),
        extra: inner.kubelet_fields("extra"),
    }
}

fn cluster_dns(section: &DecodedBlock) -> Vec<IpAddr> {
    const NAME: &str = "cluster_dns";
    let texts = section.texts(NAME).unwrap_or_default().iter();
    let addresses = texts.enumerate().filter_map(|(index, text)| {
        let address = text.parse().ok();
        if address.is_none() {
            let span = section.inner_span(NAME, PathStep::Index(index));
            let detail = format!("Each element of {NAME} must be an IP address.");
            section.error(ProblemCode::InvalidValue, span, detail);
        }
        address
    });
    addresses.collect()
}

/// The kubelet requires a grace period for each soft threshold, and rejects any other grace period.
fn check_soft(section: &DecodedBlock) {
    let (soft, grace) = ("eviction_soft", "eviction_soft_grace_period");
    let mut names = [soft, grace].into_iter();
    if names.any(|name| section.is_set(name) && section.get(name).is_none()) {
        return;
    }
    let (thresholds, periods) = (section.eviction_thresholds(soft), section.grace_periods(grace));
    let only_soft = thresholds.keys().filter(|signal| !periods.contains_key(signal));
    let only_grace = periods.keys().filter(|signal| !thresholds.contains_key(signal));
    let incomplete = only_soft
        .map(|signal| (soft, signal, grace))
        .chain(only_grace.map(|signal| (grace, signal, soft)));
    for (name, signal, other) in incomplete {
        let span = section.inner_span(name, PathStep::KeyItself(signal.as_str().to_owned()));
        let detail = format!("Each signal in {name} must also be set in {other}.");
        error_at(ProblemCode::MissingArgument, span, detail)
            .label(format!("not in {other}"))
            .report(section);
    }
}

fn check_images(section: &DecodedBlock) {
    let (low, high) = ("image_gc_low_threshold_percent", "image_gc_high_threshold_percent");
    // The kubelet's defaults. Source: Kubernetes, `KubeletConfiguration`.
    let low_percent = section.whole_number(low).unwrap_or(80);
    let high_percent = section.whole_number(high).unwrap_or(85);
    if low_percent < high_percent {
        return;
    }
    let (one, other) = match section.is_set(low) {
        true => (low, high),
        false => (high, low),
    };
    let detail = format!("{low} is {low_percent}, which is not less than {high} ({high_percent}).");
    let mut finding = error_at(ProblemCode::OutOfRange, section.value_span(one), detail);
    if section.is_set(other) {
        finding = finding.also(section.value_span(other), "");
    }
    finding.report(section);
}

fn check_family(section: &DecodedBlock, family: AmiFamily) {
    if matches!(family, AmiFamily::Al2023 | AmiFamily::Custom) {
        return;
    }
    let dns = section.texts("cluster_dns").unwrap_or_default();
    let unsupported = [
        (
            !section.kubelet_fields("extra").is_empty(),
            "extra",
            "additional fields of the kubelet configuration",
        ),
        (dns.len() > 1, "cluster_dns", "more than one cluster DNS address"),
        (
            family == AmiFamily::Bottlerocket && section.is_set("pods_per_core"),
            "pods_per_core",
            "a number of pods per core",
        ),
    ];
    for (_, argument, feature) in unsupported.into_iter().filter(|setting| setting.0) {
        let family = family.as_str();
        let detail = format!("Images of the family {family} do not support {feature}.");
        let code = ProblemCode::Conflict;
        report_argument(section, argument, code, detail, None);
    }
}
