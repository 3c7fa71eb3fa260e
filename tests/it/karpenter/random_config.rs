//! Generates configurations with all features of Karpenter, as HCL.

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::sample::{select, subsequence};

/// Lines of HCL.
type Lines = Vec<String>;

/// Returns a quoted string without template sequences.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    for c in text.replace("${", "$${").replace("%{", "%%{").chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    format!("\"{out}\"")
}

fn list(items: &[impl AsRef<str>]) -> String {
    let items: Vec<String> = items.iter().map(|own| quoted(own.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

/// Returns zero or one line with an argument.
fn argument<T: ToString + std::fmt::Debug + 'static>(
    name: &'static str,
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Lines> {
    let line = move |own: Option<T>| own.map(|own| format!("{name} = {}", own.to_string()));
    of(value).prop_map(move |own| line(own).into_iter().collect()).boxed()
}

fn joined(parts: Vec<BoxedStrategy<Lines>>) -> BoxedStrategy<Lines> {
    let all = parts.into_iter().fold(Just(Vec::new()).boxed(), |all, part| {
        let both = (all, part);
        both.prop_map(|(mut all, part): (Lines, Lines)| {
            all.extend(part);
            all
        })
        .boxed()
    });
    all.boxed()
}

fn block(head: &str, lines: &[String]) -> Lines {
    let mut all = vec![format!("{head} {{")];
    all.extend(lines.iter().cloned());
    all.push("}".to_owned());
    all
}

fn maybe_block(head: &'static str, inner: BoxedStrategy<Lines>) -> BoxedStrategy<Lines> {
    let build = |lines: Lines| match lines.is_empty() {
        true => Vec::new(),
        false => block(head, &lines),
    };
    inner.prop_map(build).boxed()
}

fn label_value() -> BoxedStrategy<String> {
    "([A-Za-z0-9]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?)?".boxed()
}

fn text() -> BoxedStrategy<String> {
    prop_oneof!["[ -~]{1,12}", "[$%{}a\\\\\"]{1,8}", "\\PC{1,8}"]
        .prop_filter("something", |own| !own.trim().is_empty())
        .boxed()
}

fn map(keys: &'static str, values: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let shown = |all: std::collections::BTreeMap<String, String>| {
        let each = all.iter();
        let each: Vec<String> =
            each.map(|(key, value)| format!("{} = {}", quoted(key), quoted(value))).collect();
        format!("{{ {} }}", each.join(", "))
    };
    btree_map(keys, values, 1..4).prop_map(shown).boxed()
}

fn tags() -> BoxedStrategy<String> {
    map("[a-z][a-z0-9/:_. -]{0,8}[a-z]", text())
}

fn duration() -> BoxedStrategy<String> {
    let unit = select(vec!["s", "m", "h"]);
    let given = (60_u32..700, unit).prop_map(|(count, unit)| format!("\"{count}{unit}\""));
    prop_oneof![given, Just("\"never\"".to_owned()), Just("\"1h30m5s\"".to_owned())].boxed()
}

fn quantity() -> BoxedStrategy<String> {
    let unit = select(vec!["", "m", "k", "Ki", "Mi", "Gi", "Ti"]);
    (1_u32..5000, unit).prop_map(|(count, unit)| format!("\"{count}{unit}\"")).boxed()
}

fn quantities(names: &'static [&'static str]) -> BoxedStrategy<String> {
    let each = names.iter().map(|name| {
        let name = *name;
        of(quantity()).prop_map(move |own| own.map(|own| format!("\"{name}\" = {own}")))
    });
    let each: Vec<_> = each.map(Strategy::boxed).collect();
    each.prop_map(|all| {
        let all: Vec<String> = all.into_iter().flatten().collect();
        format!("{{ {} }}", all.join(", "))
    })
    .boxed()
}

/// Returns requirements of one label.
fn rule(key: String, min_values: bool) -> BoxedStrategy<Lines> {
    let values = || vec("[a-z][a-z0-9]{0,3}", 1..4);
    let bounds =
        |low: u32, more: u32| vec![format!("gt = {low}"), format!("lte = {}", low + 2 + more)];
    let one = prop_oneof![
        values().prop_map(|own| vec![format!("in = {}", list(&own))]),
        values().prop_map(|own| vec![format!("not_in = {}", list(&own))]),
        any::<bool>().prop_map(|own| vec![format!("exists = {own}")]),
        (0_u32..9).prop_map(|own| vec![format!("gte = {own}")]),
        (1_u32..9).prop_map(|own| vec![format!("lt = {own}")]),
        (0_u32..9, 0_u32..9).prop_map(move |(low, more)| bounds(low, more)),
        (0_u32..9, 0_u32..9, values()).prop_map(move |(low, more, own)| {
            let mut lines = bounds(low, more);
            lines.push(format!("not_in = {}", list(&own)));
            lines
        }),
    ];
    let least = of(Just(1_u32));
    let build = move |(mut lines, least): (Lines, Option<u32>)| {
        let absent = lines.iter().any(|own| own == "exists = false");
        let least = least.filter(|_| min_values && !absent);
        lines.extend(least.map(|own| format!("min_values = {own}")));
        block(&format!("require {}", quoted(&key)), &lines)
    };
    (one, least).prop_map(build).boxed()
}

fn rules(min_values: bool, least: usize) -> BoxedStrategy<Lines> {
    let keys = vec![
        "karpenter.k8s.aws/instance-category",
        "karpenter.k8s.aws/instance-cpu",
        "topology.kubernetes.io/zone",
        "example.com/a",
        "b",
    ];
    let most = keys.len();
    let keys = subsequence(keys, least..=most);
    keys.prop_flat_map(move |keys| {
        let each = keys.into_iter().map(|key| rule(key.to_owned(), min_values));
        joined(each.collect())
    })
    .boxed()
}

fn taints(kind: &'static str) -> BoxedStrategy<Lines> {
    let one = |key: &'static str| {
        let effect = select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        let build = move |own: Option<(&str, String)>| {
            own.map_or(Vec::new(), |(effect, value)| {
                let mut lines = vec![format!("effect = {}", quoted(effect))];
                if !value.is_empty() {
                    lines.push(format!("value = {}", quoted(&value)));
                }
                block(&format!("{kind} {}", quoted(key)), &lines)
            })
        };
        of((effect, label_value())).prop_map(build).boxed()
    };
    joined(vec![one("example.com/t"), one("u")])
}

fn budget() -> BoxedStrategy<Lines> {
    let nodes = prop_oneof![
        (0_u32..50).prop_map(|own| own.to_string()),
        (0_u32..=100).prop_map(|own| format!("\"{own}%\"")),
    ];
    let reasons = subsequence(vec!["empty", "underutilized", "drifted"], 0..=3);
    let schedule = select(vec!["0 8 * * mon-fri", "@daily", "*/5 1,2 1-7 1 *"]);
    let length = select(vec!["90m", "8h", "1h1m"]);
    let build = |(nodes, reasons, when): (String, Vec<&str>, Option<(&str, &str)>)| {
        let mut lines = vec![format!("nodes = {nodes}")];
        if !reasons.is_empty() {
            lines.push(format!("reasons = {}", list(&reasons)));
        }
        if let Some((schedule, length)) = when {
            lines.push(format!("schedule = {}", quoted(schedule)));
            lines.push(format!("duration = {}", quoted(length)));
        }
        block("budget", &lines)
    };
    (nodes, reasons, of((schedule, length))).prop_map(build).boxed()
}

fn disruption(moving: bool) -> BoxedStrategy<Lines> {
    let policies = vec!["empty", "empty_or_underutilized", "balanced"];
    let budgets = vec(budget(), 0..3).prop_map(|own| own.concat()).boxed();
    let mut parts = Vec::new();
    if moving {
        let policy = select(policies).prop_map(quoted);
        parts.push(argument("consolidation", policy));
        parts.push(argument("consolidate_after", duration()));
    }
    parts.push(budgets);
    maybe_block("disruption", joined(parts))
}

/// Returns a pool of one of these node classes.
fn pool(name: String, classes: Vec<String>) -> BoxedStrategy<String> {
    let class =
        select(classes).prop_map(|own| vec![format!("node_class = node_class[{}]", quoted(&own))]);
    let labels = map("(l\\.example\\.com/)?l[a-z]{1,4}", label_value());
    let notes = map("(n\\.example\\.com/)?n[a-z]{1,4}", text());
    let common = move || {
        vec![
            class.clone().boxed(),
            argument("labels", labels.clone()),
            argument("annotations", notes.clone()),
            argument("expire_after", duration()),
            argument("termination_grace_period", duration()),
            rules(true, 0),
            taints("taint"),
            taints("startup_taint"),
        ]
    };
    let mut moving = common();
    moving.push(argument("weight", 0_u32..=100));
    let amounts = quantities(&["cpu", "memory", "example.com/gpu"]);
    moving.push(argument("limits", amounts));
    moving.push(disruption(true));
    let mut fixed = common();
    fixed.push((0_u32..9).prop_map(|own| vec![format!("replicas = {own}")]).boxed());
    fixed.push(argument("limits", Just("{ nodes = 20 }")));
    fixed.push(disruption(false));
    let build = move |lines: Lines| block(&format!("pool {}", quoted(&name)), &lines).join("\n");
    prop_oneof![3 => joined(moving), 1 => joined(fixed)].prop_map(build).boxed()
}

fn id(prefix: &'static str) -> BoxedStrategy<String> {
    "[0-9a-f]{8}".prop_map(move |own| format!("id = \"{prefix}-{own}\"")).boxed()
}

fn name() -> BoxedStrategy<String> {
    text().prop_map(|own| format!("name = {}", quoted(&own))).boxed()
}

fn by_tags() -> BoxedStrategy<String> {
    tags().prop_map(|own| format!("tags = {own}")).boxed()
}

/// Returns blocks of one kind with one line each.
fn terms(kind: &'static str, one: BoxedStrategy<String>, most: usize) -> BoxedStrategy<Lines> {
    let block = move |line: String| block(kind, &[line]);
    vec(one.prop_map(block), 0..=most).prop_map(|own| own.concat()).boxed()
}

fn images() -> BoxedStrategy<Lines> {
    let alias = select(vec!["al2@latest", "al2023@v20250801", "windows2022@latest"]);
    let alias = alias.prop_map(|own| vec![format!("ami {{ alias = \"{own}\" }}")]);
    let search = (name(), of(Just("owner = \"self\"")), of(by_tags()));
    let search = search.prop_map(|(name, owner, tags)| {
        let owner = owner.map(str::to_owned);
        let lines: Lines = [Some(name), owner, tags].into_iter().flatten().collect();
        lines.join("\n")
    });
    let parameter = Just("ssm_parameter = \"/images/a\"".to_owned());
    let one = prop_oneof![id("ami"), parameter, search, by_tags()].boxed();
    let own = terms("ami", one, 3).prop_map(|mut lines| {
        lines.insert(0, "ami_family = \"custom\"".to_owned());
        lines
    });
    prop_oneof![alias, own].boxed()
}

fn disks() -> BoxedStrategy<Lines> {
    let size = prop_oneof![
        (1_u32..59_000).prop_map(|own| format!("volume_size = \"{own}Gi\"")),
        (1_u32..64_000).prop_map(|own| format!("volume_size = \"{own}G\"")),
        Just("volume_size = \"1Ti\"".to_owned()),
        Just("snapshot_id = \"snap-0a\"\nvolume_initialization_rate = 150".to_owned()),
    ];
    let size = size.prop_map(|own| vec![own]).boxed();
    let parts = vec![
        size,
        prop_oneof![
            Just(vec!["volume_type = \"io2\"".to_owned(), "iops = 500".to_owned()]),
            argument("throughput", 125_u32..1000),
            Just(vec!["volume_type = \"gp2\"".to_owned()]),
        ]
        .boxed(),
        prop_oneof![
            argument("encrypted", any::<bool>()),
            Just(vec!["encrypted = true\nkms_key_id = \"key\"".to_owned()]),
        ]
        .boxed(),
        argument("delete_on_termination", any::<bool>()),
    ];
    let one = |device: &'static str, parts: Vec<BoxedStrategy<Lines>>| {
        let build = move |lines: Lines| block(&format!("block_device {}", quoted(device)), &lines);
        joined(parts).prop_map(build)
    };
    let mut first = parts.clone();
    first.push(argument("root_volume", any::<bool>()));
    let both = (of(one("/dev/xvda", first)), of(one("xvdb", parts)));
    let both = both.prop_map(|(one, other)| [one, other].into_iter().flatten().flatten().collect());
    both.boxed()
}

fn equipment() -> BoxedStrategy<Lines> {
    let able = || select(vec!["\"enabled\"", "\"disabled\""]);
    let metadata = vec![
        argument("http_endpoint", able()),
        argument("http_protocol_ipv6", able()),
        argument("http_put_response_hop_limit", 1_u32..=64),
        argument("http_tokens", select(vec!["\"required\"", "\"optional\""])),
    ];
    let tracking = vec![
        argument("tcp_established_timeout", select(vec!["\"1h\"", "\"90s\""])),
        argument("udp_stream_timeout", select(vec!["\"2m\"", "\"180s\""])),
        argument("udp_timeout", Just("\"45s\"")),
    ];
    let card = |card: u32, kind: &str| {
        let lines = [
            format!("network_card_index = {card}"),
            format!("device_index = {card}"),
            format!("interface_type = {}", quoted(kind)),
        ];
        block("network_interface", &lines)
    };
    let layout = [card(0, "interface"), card(1, "efa-only")].concat();
    joined(vec![
        maybe_block("metadata_options", joined(metadata)),
        maybe_block("connection_tracking", joined(tracking)),
        maybe_block("cpu_options", argument("nested_virtualization", able())),
        prop_oneof![Just(Vec::new()), Just(vec!["efa = false".to_owned()]), Just(layout),].boxed(),
    ])
}

fn kubelet() -> BoxedStrategy<Lines> {
    let soft = Just(vec![
        "eviction_soft = { \"nodefs.available\" = \"10.5%\" }".to_owned(),
        "eviction_soft_grace_period = { \"nodefs.available\" = \"1m30s\" }".to_owned(),
    ]);
    let parts = vec![
        argument("max_pods", 0_u32..1000),
        argument("pods_per_core", 0_u32..100),
        argument("cluster_dns", select(vec!["[\"10.0.0.1\"]", "[\"fd00::1\"]"])),
        argument("system_reserved", quantities(&["cpu", "memory", "pid"])),
        argument("kube_reserved", quantities(&["ephemeral-storage"])),
        argument("eviction_hard", Just("{ \"memory.available\" = \"100Mi\" }")),
        argument("eviction_max_pod_grace_period", 0_u32..1000),
        argument("image_gc_high_threshold_percent", 90_u32..=100),
        argument("image_gc_low_threshold_percent", 0_u32..80),
        argument("cpu_cfs_quota", any::<bool>()),
        prop_oneof![Just(Vec::new()).boxed(), soft.boxed()].boxed(),
    ];
    maybe_block("kubelet", joined(parts))
}

/// Returns a node class.
fn node_class(own: String) -> BoxedStrategy<String> {
    let identity = select(vec!["role = \"nodes\"", "instance_profile = \"nodes\"", ""]);
    let lines = "([ \t]{0,4}[ -~]{0,10}\n){2,5}[a-z ]{0,3}";
    let group = prop_oneof![id("sg"), name(), by_tags()].boxed();
    let open = Just("instance_match_criteria = \"open\"".to_owned());
    let targeted = by_tags().prop_map(|tags| {
        format!("owner = \"123456789012\"\ninstance_match_criteria = \"targeted\"\n{tags}")
    });
    let reservation = prop_oneof![id("cr"), by_tags(), open, targeted].boxed();
    let parts = vec![
        images(),
        identity.prop_map(|own| vec![own.to_owned()]).boxed(),
        argument("associate_public_ip", any::<bool>()),
        argument("ip_prefix_count", 0_u32..=100),
        argument("tags", tags()),
        argument("detailed_monitoring", any::<bool>()),
        argument("instance_store_policy", Just("\"raid0\"")),
        argument("context", text().prop_map(|own| quoted(&own))),
        terms("subnet", prop_oneof![id("subnet"), by_tags()].boxed(), 3),
        terms("security_group", group, 3),
        terms("capacity_reservation", reservation, 2),
        terms("placement_group", prop_oneof![id("pg"), name()].boxed(), 1),
        disks(),
        equipment(),
        kubelet(),
        argument("user_data", prop_oneof![lines.boxed(), text()].prop_map(|own| quoted(&own))),
    ];
    let build =
        move |lines: Lines| block(&format!("node_class {}", quoted(&own)), &lines).join("\n");
    joined(parts).prop_map(build).boxed()
}

/// Returns an overlay with a unique weight, because overlays of equal weight may conflict.
fn overlay(index: usize) -> BoxedStrategy<String> {
    let price = prop_oneof![
        (0_u32..1_000_000).prop_map(|own| format!("price = {}", f64::from(own) / 1e5)),
        (1_u32..99_999)
            .prop_map(|own| format!("price_adjustment = \"-{}%\"", f64::from(own) / 1e3)),
        (0_u32..99_999).prop_map(|own| format!("price_adjustment = \"+{}\"", f64::from(own) / 1e4)),
        (1_u32..9).prop_map(|own| format!("capacity = {{ \"example.com/device\" = {own} }}")),
    ];
    let build = move |(price, rules): (String, Lines)| {
        let lines = [vec![format!("weight = {index}"), price], rules].concat();
        block(&format!("overlay \"o{index}\""), &lines).join("\n")
    };
    (price, rules(false, 1)).prop_map(build).boxed()
}

/// Returns a buffer with its own pods, or with a percentage of a workload.
fn buffer(index: usize, pools: Vec<String>) -> BoxedStrategy<String> {
    let pool = of(select(pools)).prop_map(|own| {
        let own = own.map(|own| format!("pool = pool[{}]", quoted(&own)));
        own.into_iter().collect::<Lines>()
    });
    let toleration = prop_oneof![
        Just("toleration \"a\" {}"),
        Just("toleration \"b\" {\neffect = \"NoExecute\"\nvalue = \"\"\n}"),
        Just("toleration \"c\" {\nvalue = \"d\"\n}"),
    ];
    let pod = (
        quantities(&["memory", "example.com/gpu"]),
        argument("node_selector", map("s[a-z]{1,4}", label_value())),
        vec(toleration, 0..3),
    );
    let pod = pod.prop_map(|(requests, selector, tolerations)| {
        let requests = requests.replacen('{', "{ cpu = \"250m\", ", 1).replace(",  }", " }");
        let mut lines = vec![format!("requests = {requests}")];
        lines.extend(selector);
        lines.extend(tolerations.into_iter().map(str::to_owned));
        block("pod", &lines)
    });
    let count = joined(vec![
        argument("limits", Just("{ cpu = 12 }")),
        (0_u32..99).prop_map(|own| vec![format!("replicas = {own}")]).boxed(),
    ]);
    let kinds = select(vec!["Deployment", "StatefulSet", "ReplicaSet"]);
    let share = (kinds, 0_u32..300, of(1_u32..9)).prop_map(|(kind, percentage, replicas)| {
        let scalable = [
            format!("kind = \"{kind}\""),
            "namespace = \"shop\"".to_owned(),
            "name = \"web\"".to_owned(),
        ];
        let mut lines = vec![format!("percentage = {percentage}")];
        lines.extend(replicas.map(|own| format!("replicas = {own}")));
        lines.extend(block("scalable", &scalable));
        lines
    });
    let pods = (pool, count, pod).prop_map(|(pool, count, pod)| [pool, count, pod].concat());
    let build = move |lines: Lines| block(&format!("buffer \"b{index}\""), &lines).join("\n");
    prop_oneof![pods, share].prop_map(build).boxed()
}

/// Returns a configuration with two pools, two node classes, overlays and buffers.
pub(crate) fn configuration() -> impl Strategy<Value = String> {
    let classes = vec!["general".to_owned(), "1.odd-name".to_owned()];
    let pools = vec!["p".to_owned(), "2q.r".to_owned()];
    let parts = (
        node_class(classes[0].clone()),
        node_class(classes[1].clone()),
        pool(pools[0].clone(), classes.clone()),
        pool(pools[1].clone(), classes),
        of(overlay(1)),
        of(overlay(2)),
        of(buffer(1, pools.clone())),
        of(buffer(2, pools)),
    );
    parts.prop_map(|(a, b, c, d, e, f, g, h)| {
        let some = [e, f, g, h].into_iter().flatten();
        let all: Vec<String> = [a, b, c, d].into_iter().chain(some).collect();
        all.join("\n")
    })
}
