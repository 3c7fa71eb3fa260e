//! Converts clusters, without their pools.

use std::collections::BTreeMap;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::installation::Installation;
use crate::config::lower::quantities::node_limits;
use crate::config::lower::schedule::{Schedules, SweepSchedules, sweep_schedules};
use crate::config::lower::{BlockInstance, check_name, disruption};
use crate::config::report::{error_at, warning_at};
use crate::config::source::Span;
use crate::config::syntax::PathStep;
use crate::model::cluster::{
    ApiSettings, Binding, Cluster, Eks, Exec, InterruptionQueue, Kubeconfig, ManagementMode,
    PlacementHints, Rebalance, RemovedPools, Safeguards, Simulated, WatchList,
};
use crate::model::id::{ClusterName, LeaseName};
use crate::model::proxy::Proxy;

/// A cluster, and its mode in the configuration.
pub(super) struct ClusterSpec {
    pub(super) cluster: Cluster,
    /// True if the configuration sets `mode = "manage"`, even in a dry run.
    pub(super) managed: bool,
}

/// All clusters. The flag is false if a cluster is missing because of an error.
pub(super) fn lower_clusters(
    reader: &Decoder<'_>,
    installation: &Installation,
    schedules: &Schedules,
    sweeps: &SweepSchedules,
) -> (Vec<ClusterSpec>, bool) {
    let (instances, complete) = reader.decode_instances("cluster");
    let mut places: BTreeMap<String, Span> = BTreeMap::new();
    let mut isolated: BTreeMap<String, (bool, Span)> = BTreeMap::new();
    let mut drafts = Vec::new();
    let mut all_named = true;
    for instance in &instances {
        all_named &= !instance.section.is_set("name") || instance.section.get("name").is_some();
        let Some(draft) = lower_cluster(reader, instance, installation, schedules, sweeps) else {
            continue;
        };
        let cluster = &draft.cluster;
        let section = &instance.section;
        let place = section.get("name").map_or(section.header, |name| name.expr.span);
        if let Some(before) = places.insert(cluster.name.0.clone(), place) {
            // Two blocks with the same label are already reported.
            if before != place || instance.key.is_some() {
                report_twice(section, cluster.name.as_str(), place, before);
            }
        }
        check_isolation(section, cluster, &mut isolated);
        drafts.push(draft);
    }
    (drafts, complete && all_named)
}

/// Reports clusters of a region that differ in `isolated_vpc`. They share the reads of the region,
/// and the host reaches AWS for each of them in the same way. `known` has the value of the first
/// cluster of each region.
fn check_isolation(
    section: &DecodedBlock,
    cluster: &Cluster,
    known: &mut BTreeMap<String, (bool, Span)>,
) {
    // The others do not use AWS, or an exec program does.
    if cluster.simulated.is_some() || cluster.exec.is_some() {
        return;
    }
    let region = &cluster.region;
    let is_isolated = cluster.isolated_vpc;
    let (first, place) = *known.entry(region.clone()).or_insert((is_isolated, section.header));
    if first != is_isolated && !region.is_empty() {
        let detail = format!("The clusters of {region} have different values of isolated_vpc.");
        let help = "set it to the same value in all clusters of a region";
        let mut finding = error_at(ProblemCode::Conflict, section.header, detail).help(help);
        if place != section.header {
            finding = finding.also(place, "the first cluster of the region");
        }
        finding.report(section);
    }
}

fn report_twice(section: &DecodedBlock, name: &str, place: Span, before: Span) {
    let detail = format!("Two clusters have the name {name:?}.");
    let mut finding = error_at(ProblemCode::DuplicateName, place, detail);
    if before == place {
        finding = finding.help("with for_each, write name = each.key");
    } else {
        finding = finding.duplicate_of(before);
    }
    finding.report(section);
}

fn lower_cluster(
    reader: &Decoder<'_>,
    instance: &BlockInstance,
    installation: &Installation,
    schedules: &Schedules,
    sweeps: &SweepSchedules,
) -> Option<ClusterSpec> {
    let section = &instance.section;
    if section.is_set("name") && section.get("name").is_none() {
        return None;
    }
    let name = section.owned_text("name").or(instance.key.clone());
    let name = name.unwrap_or_else(|| section.label().to_owned());
    check_name(section, &name, "a cluster");
    let managed = section.text("mode") == Some("manage");
    if managed {
        check_managed(section, installation);
    }
    check_ec2(section);
    if section.is_set("external_id") && role_arn(section).is_none() {
        warn_unused(section, "external_id", "Outrigger assumes no role for this cluster");
    }
    check_of_mode(section, managed);
    let cluster = Cluster {
        installation: installation.name.clone().unwrap_or_default(),
        name: ClusterName(name),
        mode: if managed && !installation.dry_run {
            ManagementMode::Manage
        } else {
            ManagementMode::Observe
        },
        region: section.owned_text("region").unwrap_or_default(),
        role_arn: role_arn(section),
        external_id: section.owned_text("external_id"),
        node_endpoint: section.owned_text("node_endpoint"),
        kubeconfig: section.block("kubeconfig").map(|inner| kubeconfig(reader, inner)),
        eks: section.block("eks").map(lower_eks),
        interruption: section.block("interruption").map(interruption_queue),
        zonal_shift: section.flag("zonal_shift") == Some(true),
        disable_dry_run: section.flag("disable_dry_run") == Some(true),
        isolated_vpc: section.flag("isolated_vpc") == Some(true),
        exec: section.block("exec").map(|inner| lower_exec(reader, inner)),
        binding: binding(section),
        simulated: section.block("simulated").map(|inner| simulated(reader, inner)),
        api: ApiSettings {
            proxy: section.block("proxy").map(lower_proxy),
            ..section.block("api").map_or_else(ApiSettings::default, api_settings)
        },
        lease: section.block("leader_election").map_or_else(LeaseName::default, lease_name),
        tags: section.string_map("tags"),
        limits: node_limits(section),
        disruption: disruption::of_cluster(section, schedules),
        sweeps: sweep_schedules(&section.blocks("sweep").collect::<Vec<_>>(), Some(sweeps)),
        placement_hints: match section.flag("placement_hints") {
            Some(false) => PlacementHints::Off,
            _ => PlacementHints::On,
        },
        safeguards: safeguards(section),
        finalizer: section.flag("finalizer") == Some(true),
        adopt: section.flag("adopt").unwrap_or(!managed) && may_adopt(section, managed),
        events: section.flag("events") != Some(false),
        ..Cluster::default()
    };
    Some(ClusterSpec { cluster, managed })
}

fn safeguards(section: &DecodedBlock) -> Safeguards {
    let default = Safeguards::default();
    Safeguards {
        max_unready: section.budget_nodes("max_unready").unwrap_or(default.max_unready),
        undrained_max: section.budget_nodes("undrained_max").unwrap_or(default.undrained_max),
        removed_pools: match section.text("removed_pools") {
            Some("keep") => RemovedPools::Keep,
            _ => RemovedPools::Drain,
        },
        ..default
    }
}

fn lease_name(section: &DecodedBlock) -> LeaseName {
    let parts = section.text("lease").and_then(|text| text.split_once('/'));
    parts.map_or_else(LeaseName::default, |(namespace, name)| LeaseName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

fn lower_eks(section: &DecodedBlock) -> Eks {
    Eks {
        name: section.owned_text("name"),
        endpoint: section.owned_text("endpoint"),
        ca_data: section.owned_text("ca_data"),
        service_cidr: section.owned_text("service_cidr"),
    }
}

fn interruption_queue(section: &DecodedBlock) -> InterruptionQueue {
    InterruptionQueue {
        queue: section.owned_text("queue").unwrap_or_default(),
        rebalance: match section.text("rebalance") {
            Some("drain") => Rebalance::Drain,
            Some("replace_first") => Rebalance::ReplaceFirst,
            _ => Rebalance::Ignore,
        },
    }
}

fn binding(section: &DecodedBlock) -> Binding {
    match section.text("binding") {
        Some("early") => Binding::Early,
        _ => Binding::Scheduler,
    }
}

fn kubeconfig(reader: &Decoder<'_>, section: &DecodedBlock) -> Kubeconfig {
    let environment = &reader.evaluator.environment;
    let path = section.text("path").map(|path| environment.resolve(path));
    Kubeconfig { path: path.unwrap_or_default(), context: section.owned_text("context") }
}

fn simulated(reader: &Decoder<'_>, section: &DecodedBlock) -> Simulated {
    let environment = &reader.evaluator.environment;
    Simulated {
        catalog: section.text("catalog").map(|path| environment.resolve(path)),
        boot: section.duration("boot").unwrap_or_default(),
        address: section.owned_text("address"),
    }
}

fn lower_exec(reader: &Decoder<'_>, section: &DecodedBlock) -> Exec {
    const NAME: &str = "command";
    let mut command = section.texts(NAME).unwrap_or_default().to_vec();
    let environment = &reader.evaluator.environment;
    // A relative program path is resolved against the folder of the configuration.
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = environment.resolve(program).to_string_lossy().into_owned();
    }
    let has_program = command.first().is_some_and(|program| !program.trim().is_empty());
    if section.get(NAME).is_some() && !has_program {
        let span = section.inner_span(NAME, PathStep::Index(0));
        let detail = "A command must start with the name of a program.";
        section.error(ProblemCode::InvalidValue, span, detail);
    }
    Exec {
        command,
        catalog: section.text("catalog").map(|path| environment.resolve(path)),
        environment: section.texts("environment").unwrap_or_default().to_vec(),
    }
}

/// Checks arguments that are only supported or required with EC2.
fn check_ec2(section: &DecodedBlock) {
    let (simulated, exec) = (section.block("simulated"), section.block("exec"));
    if let (Some(first), Some(second)) = (simulated, exec) {
        let detail = "simulated and exec exclude each other.";
        error_at(ProblemCode::Conflict, second.header, detail)
            .also(first.header, "")
            .report(section);
    }
    let stand_in = simulated.or(exec);
    let token = section.block("eks").is_some() && section.block("kubeconfig").is_none();
    if !section.is_set("region") && (stand_in.is_none() || token) {
        let detail = match stand_in {
            None => "A cluster whose nodes EC2 launches requires the argument \"region\".",
            Some(_) => "A cluster that is looked up in EKS requires the argument \"region\".",
        };
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .label("region is missing")
            .help("write region = \"eu-central-1\", or add a simulated block")
            .report(section);
    }
    let shift = section.flag("zonal_shift") == Some(true);
    if shift && stand_in.is_none() && section.block("eks").is_none() {
        let detail = "zonal_shift is only supported for EKS clusters, so it requires an eks block.";
        let span = section.value_span("zonal_shift");
        error_at(ProblemCode::MissingBlock, span, detail)
            .help("write eks {}, or remove zonal_shift")
            .report(section);
    }
    if stand_in.is_none() {
        return;
    }
    for argument in ["zonal_shift", "disable_dry_run", "isolated_vpc"] {
        if section.flag(argument) == Some(true) {
            let why = "EC2 does not launch the nodes of this cluster";
            warn_unused(section, argument, why);
        }
    }
    if section.is_set("role_arn") && section.block("eks").is_none() {
        warn_unused(section, "role_arn", "Outrigger does not call AWS for this cluster");
    }
    if let Some(inner) = section.block("interruption") {
        let detail = "The block interruption is not used: EC2 does not launch the nodes of this \
                      cluster.";
        warning_at(ProblemCode::Unused, inner.header, detail).report(section);
    }
}

/// The role to assume. An EKS cluster may also set the role in its `eks` block.
fn role_arn(section: &DecodedBlock) -> Option<String> {
    let role_arn = section.owned_text("role_arn");
    let inner = section.block("eks").filter(|eks| eks.is_set("role_arn"));
    if let Some(eks) = inner
        && role_arn.is_some()
    {
        let detail = "role_arn is set twice: in the cluster block, and in its eks block.";
        let finding = error_at(ProblemCode::Conflict, eks.value_span("role_arn"), detail);
        finding.help("remove one of them").report(section);
    }
    role_arn.or_else(|| inner?.owned_text("role_arn"))
}

fn warn_unused(section: &DecodedBlock, argument: &str, why: &str) {
    let detail = format!("The argument {argument} is not used: {why}.");
    warning_at(ProblemCode::Unused, section.value_span(argument), detail).report(section);
}

/// Warns about arguments that have no effect in this mode.
fn check_of_mode(section: &DecodedBlock, managed: bool) {
    if section.text("binding") == Some("early") && !managed {
        let why = "Outrigger binds pods only in a managed cluster";
        warn_unused(section, "binding", why);
    }
    if section.flag("adopt") == Some(true) && !may_adopt(section, managed) {
        let why = "an exec provider cannot adopt instances";
        warn_unused(section, "adopt", why);
    }
}

/// Returns whether adoption of instances is supported.
fn may_adopt(section: &DecodedBlock, managed: bool) -> bool {
    !managed || section.block("exec").is_none()
}

fn check_managed(section: &DecodedBlock, installation: &Installation) {
    if !installation.named {
        let detail = "A managed cluster requires the name of the installation, which identifies \
                      its instances.";
        let mut finding =
            error_at(ProblemCode::MissingArgument, section.value_span("mode"), detail)
                .help("write outrigger { installation = \"NAME\" }, the same on all hosts");
        if let Some(header) = installation.header {
            finding = finding.also(header, "installation is missing");
        }
        finding.report(section);
    }
    // A simulated cluster needs no API server in a scenario; `run` checks for it.
    let reached = ["kubeconfig", "eks", "simulated"];
    if reached.iter().all(|name| section.block(name).is_none()) {
        let detail = "A managed cluster requires a kubeconfig or an eks block to reach its API \
                      server.";
        error_at(ProblemCode::MissingBlock, section.header, detail)
            .label("kubeconfig is missing")
            .help("write kubeconfig { path = \"/etc/outrigger/kubeconfig\" }, or eks {}")
            .report(section);
    }
    // If instances are simulated, connecting to the wrong cluster cannot terminate real instances.
    let kubeconfig = section.block("kubeconfig");
    let kubeconfig = kubeconfig.filter(|_| section.block("simulated").is_none());
    if let Some(inner) = kubeconfig.filter(|kubeconfig| !kubeconfig.is_set("context")) {
        let detail = "Without a context, Outrigger uses the current context of the file. A call of \
                      kubectl config use-context would change which cluster this is.";
        warning_at(ProblemCode::MissingArgument, inner.header, detail)
            .label("context is missing")
            .help("write context = \"NAME\"; kubectl config get-contexts lists the names")
            .report(inner);
    }
}

fn lower_proxy(section: &DecodedBlock) -> Proxy {
    let proxy = Proxy {
        url: section.owned_text("url").unwrap_or_default(),
        username: section.owned_text("username"),
        password: section.owned_text("password"),
        direct: section.texts("no_proxy").unwrap_or_default().to_vec(),
    };
    let help = match (&proxy.username, &proxy.password) {
        (None, Some(_)) => "set username as well",
        (Some(_), _) if proxy.url.starts_with("socks5:") => {
            "use an http or https proxy, or a proxy without credentials"
        }
        _ => return proxy,
    };
    let detail = "The proxy does not support these credentials.";
    let finding = error_at(ProblemCode::Conflict, section.header, detail);
    finding.help(help).report(section);
    proxy
}

fn api_settings(section: &DecodedBlock) -> ApiSettings {
    let default = ApiSettings::default();
    ApiSettings {
        poll: section.duration("poll"),
        qps: section.count("qps").unwrap_or(default.qps),
        burst: section.count("burst").unwrap_or(default.burst),
        concurrency: section.count("concurrency").unwrap_or(default.concurrency),
        watch_list: match section.text("watch_list") {
            Some("on") => WatchList::On,
            _ => WatchList::Off,
        },
        watch_timeout: section.duration("watch_timeout").unwrap_or(default.watch_timeout),
        proxy: None,
    }
}
