//! Karpenter objects are converted to valid HCL, and configurations to Karpenter objects.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use insta::{assert_snapshot, glob, with_settings};
use outrigger::config::diagnostic::render_all;
use outrigger::config::{Config, Inputs, SourceFile, load};
use outrigger::migrate::karpenter::DroppedField;
use outrigger::migrate::karpenter::export::{ExportError, Exported, export_cluster};
use outrigger::migrate::karpenter::import::{ImportError, ImportOptions, Imported, import};

pub(crate) mod random_config;
pub(crate) mod fields;
pub(crate) mod round_trip;

/// A cluster for HCL without one.
const CLUSTER: &str = "cluster \"shop\" {\n  region = \"eu-central-1\"\n  eks {}\n}\n";

pub(crate) fn imported(text: &str) -> Result<Imported, ImportError> {
    import(&[SourceFile::new("in.yaml", text)], &ImportOptions::default())
}

/// Loads HCL together with a cluster.
pub(crate) fn loaded(hcl: &str) -> Config {
    let files = [SourceFile::new("main.hcl", hcl), SourceFile::new("cluster.hcl", CLUSTER)];
    let config = load(&files, &Inputs::default());
    config.unwrap_or_else(|problems| panic!("{}\n{hcl}", render_all(&problems)))
}

pub(crate) fn exported(config: &Config) -> Exported {
    export_cluster(config, None).expect("one cluster")
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a case in UTF-8")
}

pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().expect("a file has a name");
    name.to_string_lossy().into_owned()
}

/// Returns the imported files with the dropped fields.
pub(crate) fn snapshot_text(imported: &Imported) -> String {
    let mut out = String::new();
    for part in &imported.parts {
        writeln!(out, "── {}\n{}", part.file, part.text).expect("a text");
    }
    for loss in &imported.losses {
        writeln!(out, "{loss}").expect("a text");
    }
    for (kind, count) in &imported.skipped {
        writeln!(out, "skipped {kind} ({count})").expect("a text");
    }
    out
}

#[test]
fn karpenter_objects_are_imported_as_valid_hcl_with_dropped_fields() {
    glob!("karpenter/import/*.{yaml,json}", |path| {
        let imported = imported(&read(path)).expect("objects of Karpenter's");
        let config = loaded(&imported.text());
        assert!(config.clusters[0].pools.iter().len() > 0, "{path:?}");
        with_settings!({
            snapshot_path => "karpenter/import",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            snapshot_suffix => name_of(path),
        }, {
            assert_snapshot!("imported", snapshot_text(&imported));
        });
    });
}

#[test]
fn every_dropped_field_is_noted_in_the_hcl() {
    glob!("karpenter/import/*.{yaml,json}", |path| {
        let imported = imported(&read(path)).expect("objects of Karpenter's");
        let text = imported.text();
        for loss in &imported.losses {
            let note = format!("import: dropped {} ({})", loss.path, loss.why);
            // An object of an unknown version has no block.
            let homeless = loss.of == "NodePool/future";
            assert_eq!(text.contains(&note), !homeless, "{note}\n{text}");
        }
        for note in text.lines().filter_map(|line| line.split_once("# import: ")) {
            let own = |loss: &DroppedField| note.1.starts_with(&format!("dropped {} (", loss.path));
            assert!(imported.losses.iter().any(own), "{}", note.1);
        }
    });
}

#[test]
fn exported_objects_note_every_dropped_setting() {
    glob!("karpenter/export/*.hcl", |path| {
        let files = [SourceFile::new("main.hcl", read(path))];
        let config = load(&files, &Inputs::default());
        let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
        let exported = exported(&config);
        for loss in &exported.losses {
            let note = format!("# export: {loss}\n");
            assert!(exported.text.contains(&note), "{note}");
        }
        with_settings!({
            snapshot_path => "karpenter/export",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            snapshot_suffix => name_of(path),
        }, {
            assert_snapshot!("exported", exported.text);
        });
    });
}

#[test]
fn imported_blocks_name_the_given_clusters() {
    let pool =
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/karpenter/import/v1.yaml"));
    let options = ImportOptions { clusters: vec!["shop".to_owned(), "eu-*".to_owned()] };
    let imported = import(&[SourceFile::new("in.yaml", pool)], &options).expect("objects");
    let wanted = "= [\"shop\", \"eu-*\"]";
    assert_eq!(imported.text().matches(wanted).count(), 2);
    loaded(&imported.text());
}

fn pool(name: &str) -> String {
    format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{ name: {name} }}\nspec:\n  \
         template: {{ spec: {{ requirements: [], nodeClassRef: {{ kind: EC2NodeClass, name: a }} \
         }} }}\n"
    )
}

#[test]
fn import_errors_name_the_invalid_object() {
    let deep = format!("kind: {}{}", "[".repeat(5000), "]".repeat(5000));
    let twice = format!("{}---\n{}", pool("a"), pool("a"));
    let older = "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: { name: a }\n";
    let both = format!("{}---\n{older}", pool("a"));
    let rows = [
        ("a: [", "read in.yaml: "),
        ("- 1", "document 1 is not an object"),
        ("kind: NodePool", "document 1 is not an object"),
        (&deep, "read in.yaml: "),
        ("", "the input has none"),
        ("apiVersion: v1\nkind: Secret\nmetadata: { name: a }", "the input has only Secret"),
        (
            "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {}",
            "import a NodePool of in.yaml: it has no name",
        ),
        (&twice, "import NodePool/a and NodePool/a: both become pool \"a\""),
        (&both, "import NodePool/a and Provisioner/a: both become pool \"a\""),
    ];
    for (text, expect) in rows {
        let error = imported(text).expect_err(text).to_string();
        assert!(error.contains(expect), "{error}");
        assert!(error.chars().count() < 500, "{error}");
    }
}

#[test]
fn unrelated_documents_are_skipped_and_counted() {
    let files = |texts: &[&str]| {
        let files = (0..).zip(texts);
        let files: Vec<SourceFile> =
            files.map(|(index, text)| SourceFile::new(format!("{index}.yaml"), *text)).collect();
        import(&files, &ImportOptions::default())
    };
    let kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    let (values, empty) = ("replicas: 3\n", "apiVersion: v1\nkind: List\nitems: null\n");
    let list = "{apiVersion: v1, kind: List, items: [null, {kind: 7}]}";
    let all = files(&[kustomization, values, empty, "- 1", &pool("a")]).expect("a pool");
    let skipped: Vec<(&str, usize)> = all.skipped.iter().map(|own| (&*own.0, own.1)).collect();
    assert_eq!(
        skipped,
        [("Kustomization.kustomize.config.k8s.io", 1), ("document without a kind", 2)]
    );
    for (texts, expect) in [
        (&[values, values] as &[&str], "the input has only document without a kind"),
        (&[values], "document 1 is not an object"),
        (&[kustomization], "the input has only Kustomization"),
        (&[empty], "the input has none"),
        (&[list, values], "cannot read 0.yaml: document 1, items[1] is not an object with a kind"),
        (&["apiVersion: karpenter.sh/v1\nkind: NodePool"], "it has no name"),
        (&["kind: NodePool", values], "read 0.yaml: document 1 is not an object"),
    ] {
        let error = files(texts).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    }
}

/// Imports a buffer of a pod template with this spec.
fn import_buffer(spec: &str) -> Imported {
    let text = format!(
        "apiVersion: v1\nkind: PodTemplate\nmetadata: {{ name: a }}\ntemplate: {{ spec: {spec} }}\n\
         ---\napiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\n\
         metadata: {{ name: a }}\nspec: {{ replicas: 1, podTemplateRef: {{ name: a }} }}\n"
    );
    imported(&text).expect("a buffer")
}

#[test]
fn missing_requests_default_to_limits() {
    let own = import_buffer(
        "{ containers: [{ resources: { requests: { cpu: 1 }, limits: { cpu: 2, memory: 4Gi } } }, \
         { resources: { limits: { cpu: 500m, memory: 1Gi } } }] }",
    );
    assert_eq!(own.losses, []);
    let text = own.text();
    assert!(text.contains("requests = { cpu = \"1500m\", memory = \"5Gi\" }"), "{text}");
}

#[test]
fn invalid_pod_template_fields_are_reported() {
    for (spec, path) in [
        ("[]", "template.spec"),
        ("{ containers: { a: 1 } }", "template.spec.containers"),
        ("{ containers: [a] }", "template.spec.containers[0].resources"),
        (
            "{ containers: [{ resources: { requests: [1] } }] }",
            "template.spec.containers[0].resources.requests",
        ),
        (
            "{ containers: [{ resources: { limits: { cpu: -1 } } }] }",
            "template.spec.containers[0].resources.limits.cpu",
        ),
        ("{ nodeSelector: [a] }", "template.spec.nodeSelector"),
        ("{ tolerations: { a: b } }", "template.spec.tolerations"),
        ("{ tolerations: [{ key: a, effect: [b] }] }", "template.spec.tolerations[0]"),
    ] {
        let own = import_buffer(spec);
        let paths: Vec<&str> = own.losses.iter().map(|own| own.path.as_str()).collect();
        assert!(paths.contains(&&*format!("PodTemplate/a: {path}")), "{spec}: {paths:?}");
    }
}

/// Imports an object with this spec.
fn import_spec(kind: &str, spec: &str) -> Imported {
    let text = format!("apiVersion: {kind}\nmetadata: {{ name: a }}\nspec: {spec}\n");
    imported(&text.replace(" kind=", "\nkind: ")).expect("an object")
}

#[test]
fn spec_that_is_not_an_object_is_reported() {
    let own = import_spec("karpenter.k8s.aws/v1 kind=EC2NodeClass", "[{ role: x }]");
    let losses: Vec<String> = own.losses.iter().map(DroppedField::to_string).collect();
    assert_eq!(losses, ["EC2NodeClass/a: dropped spec (the value is not an object)"]);
}

#[test]
fn invalid_node_class_reference_is_reported() {
    for (kind, spec, path) in [
        (
            "karpenter.sh/v1 kind=NodePool",
            "{ template: { spec: { nodeClassRef: { group: [a], name: a } } } }",
            "spec.template.spec.nodeClassRef.group",
        ),
        (
            "karpenter.sh/v1 kind=NodePool",
            "{ template: { spec: { nodeClassRef: { kind: 7, name: a } } } }",
            "spec",
        ),
        (
            "karpenter.sh/v1alpha5 kind=Provisioner",
            "{ providerRef: { name: [a] } }",
            "spec.providerRef.name",
        ),
    ] {
        let own = import_spec(kind, spec);
        let reported = own.losses.iter().any(|own| own.path == path);
        assert!(reported, "{spec}: {:?}", own.losses);
    }
}

#[test]
fn selector_with_non_string_values_is_dropped() {
    for (spec, path, any) in [
        ("{ subnetSelector: { Name: [a, b], c: d } }", Some("spec.subnetSelector.Name"), false),
        ("{ securityGroupSelector: { a: { b: c } } }", Some("spec.securityGroupSelector.a"), false),
        ("{ amiSelector: { a: { b: c } } }", Some("spec.amiSelector.a"), false),
        ("{ subnetSelector: { a: } }", None, true),
        ("{ subnetSelector: { a: '' } }", None, true),
    ] {
        let own = import_spec("karpenter.k8s.aws/v1alpha1 kind=AWSNodeTemplate", spec);
        let paths: Vec<&str> = own.losses.iter().map(|own| own.path.as_str()).collect();
        assert_eq!(paths, Vec::from_iter(path), "{spec}");
        let text = own.text();
        assert_eq!(text.contains("\"*\""), any, "{text}");
        assert!(!text.contains("subnet {") || any, "{text}");
        assert_eq!(text.contains("@latest"), !spec.contains("amiSelector"), "{text}");
    }
}

#[test]
fn json_input_may_have_tabs_and_several_objects() {
    let object = |name: &str| {
        format!(
            "{{\n\t\"apiVersion\": \"karpenter.k8s.aws/v1\",\n\t\"kind\": \"EC2NodeClass\",\n\t\
             \"metadata\": {{\"name\": \"{name}\"}},\n\t\"spec\": {{\"role\": \"r\"}}\n}}\n"
        )
    };
    let imported = imported(&(object("a") + &object("b"))).expect("two objects");
    assert_eq!(imported.parts[0].text.matches("role = \"r\"").count(), 2);
}

#[test]
fn export_requires_the_choice_of_one_cluster() {
    let two = "cluster \"a\" {\n  simulated {}\n}\ncluster \"b\" {\n  simulated {}\n}\n\
               pool \"a\" { clusters = [\"a\"] }\npool \"b\" { clusters = [\"b\"] }\n";
    let config = load(&[SourceFile::new("main.hcl", two)], &Inputs::default());
    let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
    let error = export_cluster(&config, None).expect_err("which one");
    assert!(matches!(error, ExportError::Several { .. }), "{error}");
    let error = export_cluster(&config, Some("c")).expect_err("not there");
    assert_eq!(error.to_string(), "the configuration has no cluster \"c\"; it has a, b");
    let own = export_cluster(&config, Some("b")).expect("it is there");
    assert!(own.text.contains("name: b") && !own.text.contains("name: a"));
    assert!(export_cluster(&Config::default(), None).is_err());
}
