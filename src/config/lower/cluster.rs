//! Lowers clusters, without their pools.
//! It must not know which pools there are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::lower::amounts::limits;
use crate::config::lower::installation::Installation;
use crate::config::lower::{Blocks, Instance};
use crate::config::names::name_fault;
use crate::config::problem::ProblemCode;
use crate::config::read::{Reader, Section};
use crate::config::report::Finding;
use crate::config::source::Span;
use crate::model::cluster::{
    Api, Cluster, Exec, Kubeconfig, Mode, PlacementHints, Simulated, WatchList,
};
use crate::model::id::ClusterName;

/// A cluster, and where it was written.
pub(super) struct Draft {
    pub(super) cluster: Cluster,
}

/// All clusters, and whether none is missing because of a fault.
pub(super) fn lower(
    reader: &Reader<'_>,
    blocks: &Blocks<'_>,
    installation: &Installation,
) -> (Vec<Draft>, bool) {
    let (instances, complete) = reader.instances(blocks, "cluster");
    let mut places: BTreeMap<String, Span> = BTreeMap::new();
    let mut drafts = Vec::new();
    let mut named = true;
    for instance in &instances {
        named &= !instance.section.has("name") || instance.section.get("name").is_some();
        let Some(cluster) = one(reader, instance, installation) else {
            continue;
        };
        let section = &instance.section;
        let place = section
            .get("name")
            .map_or(section.header, |name| name.expr.span);
        if let Some(before) = places.insert(cluster.name.0.clone(), place) {
            // Two blocks of one label have been reported as such.
            if before != place || instance.key.is_some() {
                report_twice(reader, section, cluster.name.as_str(), place, before);
            }
        }
        drafts.push(Draft { cluster });
    }
    (drafts, complete && named)
}

fn report_twice(reader: &Reader<'_>, section: &Section, name: &str, place: Span, before: Span) {
    let detail = format!("There are two clusters {name:?}.");
    let mut finding = Finding::error(ProblemCode::DuplicateName, place, detail);
    if before == place {
        finding = finding.help("with for_each, write name = each.key");
    } else {
        finding = finding.label("again here").also(before, "first here");
    }
    reader.reporter.add(finding.within(&section.title));
}

fn one(reader: &Reader<'_>, instance: &Instance, installation: &Installation) -> Option<Cluster> {
    let section = &instance.section;
    if section.has("name") && section.get("name").is_none() {
        return None;
    }
    let name = section.owned("name").or(instance.key.clone());
    let name = name.unwrap_or_else(|| section.label().to_owned());
    if let Some(why) = name_fault(&name).filter(|_| !section.label().is_empty()) {
        let detail = format!("{name:?} cannot be the name of a cluster. {why}");
        let finding = Finding::error(ProblemCode::InvalidLabel, section.label_span(), detail);
        reader.reporter.add(finding.within(&section.title));
    }
    let managed = section.text("mode") == Some("manage");
    if managed {
        check_managed(reader, section, installation);
    }
    let elsewhere = ["simulated", "exec"];
    if !elsewhere.iter().any(|it| section.block(it).is_some()) && !section.has("region") {
        let detail = "A cluster whose nodes EC2 makes needs the argument \"region\".";
        let finding = Finding::error(ProblemCode::MissingArgument, section.header, detail)
            .label("region is missing")
            .help("write region = \"eu-central-1\", or add a simulated or an exec block")
            .within(&section.title);
        reader.reporter.add(finding);
    }
    let path = |text: &str| reader.evaluator.environment.resolve(text);
    Some(Cluster {
        installation: installation.name.clone().unwrap_or_default(),
        name: ClusterName(name),
        mode: if managed && !installation.dry_run {
            Mode::Manage
        } else {
            Mode::Observe
        },
        region: section.owned("region").unwrap_or_default(),
        kubeconfig: section.block("kubeconfig").map(|inner| Kubeconfig {
            path: inner.text("path").map_or_else(PathBuf::new, path),
            context: inner.owned("context"),
        }),
        simulated: section.block("simulated").map(|inner| Simulated {
            catalog: inner.text("catalog").map(path),
            boot: inner.duration("boot").unwrap_or_default(),
            address: inner.owned("address"),
        }),
        exec: section.block("exec").map(|inner| Exec {
            command: inner.texts("command").unwrap_or_default().to_vec(),
            catalog: inner.text("catalog").map(path),
            environment: inner.texts("environment").unwrap_or_default().to_vec(),
        }),
        api: section.block("api").map_or_else(Api::default, api),
        tags: section.map("tags"),
        limits: limits(section),
        placement_hints: match section.flag("placement_hints") {
            Some(false) => PlacementHints::Off,
            _ => PlacementHints::On,
        },
        ..Cluster::default()
    })
}

fn check_managed(reader: &Reader<'_>, section: &Section, installation: &Installation) {
    if !installation.named {
        let detail = "A managed cluster needs to know which instances are its own, by the name \
                      of the installation.";
        let mut finding =
            Finding::error(ProblemCode::MissingArgument, section.span("mode"), detail)
                .help("write outrigger { installation = \"NAME\" }, the same on all hosts")
                .within(&section.title);
        if let Some(header) = installation.header {
            finding = finding.also(header, "installation is missing");
        }
        reader.reporter.add(finding);
    }
    // A simulated cluster may live in a scenario or a file alone; `run` asks for it.
    if section.block("kubeconfig").is_none() && section.block("simulated").is_none() {
        let detail = "A managed cluster needs a kubeconfig block: nothing else says how its API \
                      is reached.";
        let finding = Finding::error(ProblemCode::MissingBlock, section.header, detail)
            .label("kubeconfig is missing")
            .help("write kubeconfig { path = \"/etc/outrigger/kubeconfig\" }")
            .within(&section.title);
        reader.reporter.add(finding);
    }
}

fn api(section: &Section) -> Api {
    let default = Api::default();
    Api {
        poll: section.duration("poll"),
        qps: section.count("qps").unwrap_or(default.qps),
        burst: section.count("burst").unwrap_or(default.burst),
        concurrency: section.count("concurrency").unwrap_or(default.concurrency),
        watch_list: match section.text("watch_list") {
            Some("on") => WatchList::On,
            _ => WatchList::Off,
        },
        view_max_age: section
            .duration("view_max_age")
            .unwrap_or(default.view_max_age),
    }
}
