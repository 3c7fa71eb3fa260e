//! Functions of expressions, one case per line: the call and its result as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outrigger::config::diagnostic::render_all;
use outrigger::config::{FileReadError, Inputs, SourceFile, function_names, load};

/// Calls and results. A result that is not JSON is a part of the error message.
const CASES: &[(&str, &str)] = &[
    ("abs(-3)", "3"),
    ("abs(2.5)", "2.5"),
    ("ceil(1.2)", "2"),
    ("floor(-1.2)", "-2"),
    ("max(1, \"7\", 3)", "7"),
    ("min([3, 1, 2]...)", "1"),
    ("max(1, 1.5)", "1.5"),
    ("min(1.5, 1, 2.5)", "1"),
    ("max(-1, -1.5)", "-1"),
    ("sum([1, 2.5, \"3\"])", "6.5"),
    ("sum([1, \"x\"])", "argument 1 must be a list of numbers"),
    ("range(3)", "[0,1,2]"),
    ("range(5, 0, -2)", "[5,3,1]"),
    ("range(0, 5, -1)", "the step must lead"),
    ("range(2000)", "more than 1024"),
    ("coalesce(null, \"\", \"a\", \"b\")", "\"a\""),
    ("coalesce(null, \"\")", "all arguments are null or empty"),
    ("coalescelist([], [1])", "[1]"),
    ("compact([\"a\", \"\", null, \"b\"])", "[\"a\",\"b\"]"),
    ("concat([1], [], [2, 3])", "[1,2,3]"),
    ("contains([\"a\", \"b\"], \"b\")", "true"),
    ("contains([1], \"1\")", "false"),
    ("distinct([1, 2, 1, [1], [1]])", "[1,2,[1]]"),
    ("element([\"a\", \"b\", \"c\"], 4)", "\"b\""),
    ("element([\"a\", \"b\", \"c\"], -1)", "\"c\""),
    ("element([], 0)", "the list is empty"),
    ("flatten([[1, [2]], 3])", "[1,2,3]"),
    ("index([\"a\", \"b\"], \"b\")", "1"),
    ("index([\"a\"], \"z\")", "does not contain this value"),
    ("keys({ b = 1, a = 2 })", "[\"a\",\"b\"]"),
    ("values({ b = 1, a = 2 })", "[2,1]"),
    ("length(\"hé\")", "2"),
    ("length([1, 2])", "2"),
    ("length({ a = 1 })", "1"),
    ("length(5)", "must be a list, a map or a string"),
    ("lookup({ a = 1 }, \"a\", 2)", "1"),
    ("lookup({ a = 1 }, \"b\", 2)", "2"),
    ("lookup({ a = 1 }, \"b\")", "no key \"b\""),
    ("merge({ a = 1 }, null, { a = 2, b = 3 })", "{\"a\":2,\"b\":3}"),
    ("merge()", "{}"),
    ("one([])", "null"),
    ("one([7])", "7"),
    ("one([1, 2])", "the list has 2 elements; at most one is allowed"),
    ("reverse([1, 2])", "[2,1]"),
    ("setintersection([1, 2, 3], [2, 3], [3, 4])", "[3]"),
    ("setsubtract([1, 2, 2, 3], [3])", "[1,2]"),
    ("setunion([1, 2], [2, 3])", "[1,2,3]"),
    ("setproduct([1, 2], [\"a\", \"b\"])", "[[1,\"a\"],[1,\"b\"],[2,\"a\"],[2,\"b\"]]"),
    ("setproduct(range(200), range(200))", "more than 10000 elements"),
    ("slice([1, 2, 3], 1, 3)", "[2,3]"),
    ("slice([1], 0, 2)", "an index from 0 to 1"),
    ("sort([\"b\", \"a\"])", "[\"a\",\"b\"]"),
    ("zipmap([\"a\", \"b\"], [1, 2])", "{\"a\":1,\"b\":2}"),
    ("zipmap([\"a\"], [])", "1 keys and 0 values"),
    ("tolist([1])", "[1]"),
    ("toset([\"b\", \"a\", \"b\"])", "[\"a\",\"b\"]"),
    ("tomap({ a = 1 })", "{\"a\":1}"),
    ("tomap([1])", "argument 1 must be a map"),
    ("tostring(1.0)", "\"1\""),
    ("tostring([1])", "argument 1 must be a string"),
    ("tonumber(\"0x10\")", "argument 1 must be a number"),
    ("tonumber(\"-2.50\")", "-2.5"),
    ("tobool(\"true\")", "true"),
    ("tobool(\"yes\")", "argument 1 must be a bool"),
    (
        r#"format("%s-%03d|%5s|%-5s|%.1f|%t|%q|%x|%%", "a", 7, "b", "c", 2.55, true, "d", 255)"#,
        "\"a-007|    b|c    |2.5|true|\\\"d\\\"|ff|%\"",
    ),
    ("format(\"%v\", [1, { a = null }])", "\"[1,{\\\"a\\\":null}]\""),
    ("format(\"%d\", \"x\")", "the value of %d must be a number, not a string"),
    ("format(\"%s\")", "no argument left for %s"),
    ("format(\"a\", 1)", "1 arguments for 0 verbs"),
    ("format(\"%9999s\", \"a\")", "a width must be at most"),
    ("formatlist(\"%s.%s\", [\"a\", \"b\"], \"x\")", "[\"a.x\",\"b.x\"]"),
    ("formatlist(\"%s%s\", [1], [1, 2])", "the lists differ in length"),
    ("join(\", \", [\"a\", \"b\"], [\"c\"])", "\"a, b, c\""),
    ("lower(\"ABC\")", "\"abc\""),
    ("upper(\"abc\")", "\"ABC\""),
    ("title(\"hello big world\")", "\"Hello Big World\""),
    ("replace(\"a-b-c\", \"-\", \"+\")", "\"a+b+c\""),
    ("replace(\"a1b22\", \"/[0-9]+/\", \"<$0>\")", "\"a\\u003c1\\u003eb\\u003c22\\u003e\""),
    ("regex(\"[a-z]+\", \"12abc\")", "\"abc\""),
    ("regex(\"([a-z])([0-9])\", \"a1\")", "[\"a\",\"1\"]"),
    ("regex(\"(?P<letter>[a-z])\", \"a\")", "{\"letter\":\"a\"}"),
    ("regex(\"x\", \"a\")", "matches nothing in the string"),
    ("regex(\"(\", \"a\")", "is not a regular expression"),
    ("regexall(\"[0-9]\", \"1a2\")", "[\"1\",\"2\"]"),
    ("split(\",\", \"a,b\")", "[\"a\",\"b\"]"),
    ("split(\",\", \"\")", "[]"),
    ("startswith(\"eu-west\", \"eu-\")", "true"),
    ("endswith(\"eu-west\", \"east\")", "false"),
    ("substr(\"hello\", 1, 3)", "\"ell\""),
    ("substr(\"hello\", -3, -1)", "\"llo\""),
    ("substr(\"hi\", 0, 99)", "\"hi\""),
    ("strcontains(\"hello\", \"ell\")", "true"),
    ("trim(\"?!hi!?\", \"!?\")", "\"hi\""),
    ("trimprefix(\"xxa\", \"x\")", "\"xa\""),
    ("trimsuffix(\"a.hcl\", \".hcl\")", "\"a\""),
    ("trimspace(\"  a\\n\")", "\"a\""),
    ("jsondecode(\"[1, {\\\"a\\\": null, \\\"b\\\": 1.5}]\")", "[1,{\"a\":null,\"b\":1.5}]"),
    ("jsondecode(\"{\")", "the string is not JSON"),
    (
        "jsonencode({ b = [1, true], a = \"<&>\" })",
        "\"{\\\"a\\\":\\\"\\\\u003c\\\\u0026\\\\u003e\\\",\\\"b\\\":[1,true]}\"",
    ),
    (
        "yamlencode({ b = [1, { c = true }], a = {}, d = \"x: y\" })",
        r#""\"a\": {}\n\"b\":\n  - 1\n  -\n    \"c\": true\n\"d\": \"x: y\"\n""#,
    ),
    (
        r#"yamldecode("a: 1\nb:\n- x\n- y: 2\n  z: 'it''s'\nc: [1, \"two\", {k: ~}] # note\n")"#,
        "{\"a\":1,\"b\":[\"x\",{\"y\":2,\"z\":\"it's\"}],\"c\":[1,\"two\",{\"k\":null}]}",
    ),
    (
        "yamldecode(\"text: |\\n  one\\n    two\\n\\n  three\\nfold: >-\\n  a\\n  b\\n\")",
        "{\"fold\":\"a b\",\"text\":\"one\\n  two\\n\\nthree\\n\"}",
    ),
    (
        "yamldecode(yamlencode({ a = [[1], { b = [] }], c = { d = \"x\" } }))",
        "{\"a\":[[1],{\"b\":[]}],\"c\":{\"d\":\"x\"}}",
    ),
    (
        "yamldecode(\"- 1\\n-   - a\\n    - b\\n- url: http://x:80/y\\n\")",
        "[1,[\"a\",\"b\"],{\"url\":\"http://x:80/y\"}]",
    ),
    ("yamldecode(\"\")", "null"),
    ("yamldecode(\"a: 1\\na: 2\\n\")", "line 2 of the string: the key \"a\" is set twice"),
    ("yamldecode(\"a: &x 1\\n\")", "anchors, aliases and tags are not supported"),
    ("yamldecode(\"a: 1\\n   b: 2\\n\")", "line 2 of the string"),
    (
        "yamldecode(\"- - 1\\n  - -1\\n- [1.50, .5, 1e3, 1.2.3, 1-2]\\n\")",
        "[[1,-1],[1.5,0.5,1000,\"1.2.3\",\"1-2\"]]",
    ),
    (
        "yamldecode(\"[true, False, NULL, ~, tRUE, '1', \\\"true\\\"]\")",
        "[true,false,null,null,\"tRUE\",\"1\",\"true\"]",
    ),
    (
        "yamldecode(\"---\\n1: a\\ntrue: b\\n'c d': \\\"\\\\u00e4\\\\n\\\"\\ne:\
         \\nf: # none\\n- 'it''s' # g\\n\")",
        "{\"1\":\"a\",\"c d\":\"ä\\n\",\"e\":null,\"f\":[\"it's\"],\"true\":\"b\"}",
    ),
    (
        "yamldecode(\"a:\\n- b\\nc:\\n  - d\\n  -\\n    e: {}\\n  - # f\\n    - []\\n\")",
        "{\"a\":[\"b\"],\"c\":[\"d\",{\"e\":{}},[[]]]}",
    ),
    (
        "yamldecode(\"a: |-\\n  b\\n\\n    c\\nd: |+\\n  e\\n\
         \\nf: >\\n  g\\n  h\\n\\n  i\\nj: k#l\\n\")",
        "{\"a\":\"b\\n\\n  c\",\"d\":\"e\\n\\n\",\"f\":\"g h\\ni\\n\",\"j\":\"k#l\"}",
    ),
    ("yamldecode(\"- |\\n  # a\\n  b: c\\n- d\\n\")", "[\"# a\\nb: c\\n\",\"d\"]"),
    (
        "yamldecode(\"a: [b,\\n  {c: d}, # e\\n  'f, g']\\nh: {\\n  i: 1\\n}\\n\")",
        "{\"a\":[\"b\",{\"c\":\"d\"},\"f, g\"],\"h\":{\"i\":1}}",
    ),
    ("yamldecode(\"a: 1\\r\\nb: [2]\\r\\n\")", "{\"a\":1,\"b\":[2]}"),
    ("yamldecode(\"{\\\"a\\\": 1, \\\"a\\\": 2}\")", "{\"a\":2}"),
    ("yamldecode(\"a: [1\\n\")", "line 1 of the string"),
    ("yamldecode(\"a: 1\\nb\\n\")", "line 2 of the string"),
    ("yamldecode(\"a: 1\\n---\\nb: 2\\n\")", "line 2 of the string"),
    ("yamldecode(\"a: !!str 1\")", "anchors, aliases and tags are not supported"),
    ("yamldecode(\"a: *b\")", "anchors, aliases and tags are not supported"),
    (
        "yamldecode(\"a: b\\n  c\\nd: \\\"e\\n  f\\\"\\ng: 'h\\n\\n  i'\\n\")",
        "{\"a\":\"b c\",\"d\":\"e f\",\"g\":\"h\\ni\"}",
    ),
    (
        "yamldecode(\"- ['it''s', \\\"a\\\\\\\"b\\\", \\\"\\\\x41\\\"]\
         \\n- >\\n  c\\n    d\\n  e\\n- |2\\n    f\\n\")",
        "[[\"it's\",\"a\\\"b\",\"A\"],\"c\\n  d\\ne\\n\",\"  f\\n\"]",
    ),
    ("yamldecode(\"{a, b: , c:1}\")", "{\"a\":null,\"b\":null,\"c:1\":null}"),
    ("yamldecode(\"[a: 1]\")", "[{\"a\":1}]"),
    ("yamldecode(\"? a\\n: b\\n? c\\n\")", "{\"a\":\"b\",\"c\":null}"),
    ("yamldecode(\"a:\\tb \\t# c\\n\")", "{\"a\":\"b\"}"),
    ("yamldecode(\"a: b: c\")", "line 1 of the string: mapping values are not allowed"),
    ("yamldecode(\"[a,, b]\")", "line 1 of the string"),
    ("yamldecode(\"a: @b\")", "line 1 of the string"),
    ("yamldecode(\"a:\\n\\tb: 1\\n\")", "line 2 of the string"),
    ("yamldecode(\"[*a]\")", "anchors, aliases and tags are not supported"),
    ("yamldecode(\"? [a]\\n: b\\n\")", "a list or a map cannot be a key"),
    ("yamldecode(\"%YAML 1.2\\n---\\na: 1\\n\")", "line 1 of the string"),
    ("base64encode(\"hello\")", "\"aGVsbG8=\""),
    ("base64encode(\"\")", "\"\""),
    ("base64decode(\"aGVsbG8=\")", "\"hello\""),
    ("base64decode(\"aGVsbG8\")", "its length is not a multiple of four"),
    ("base64decode(\"/w==\")", "not UTF-8"),
    ("base64encode(\"ä?~\")", "\"w6Q/fg==\""),
    ("base64decode(\"w6Q/fg==\")", "\"ä?~\""),
    ("base64decode(\"\")", "\"\""),
    ("base64decode(\"QR==\")", "\"A\""),
    ("base64decode(\"Q===\")", "its length is not a multiple of four"),
    ("base64decode(\"====\")", "its length is not a multiple of four"),
    ("base64decode(\"QQ==QQ==\")", "it has an invalid character"),
    ("base64decode(\"=QQ=\")", "it has an invalid character"),
    ("base64decode(\"QQ-_\")", "it has an invalid character"),
    ("base64decode(\"QUJD\\nREV\")", "it has an invalid character"),
    ("file(\"hello.txt\")", "\"hello\\n\""),
    ("file(\"/etc/passwd\")", "/etc/passwd cannot be read"),
    ("fileexists(\"hello.txt\")", "true"),
    ("fileexists(\"other.txt\")", "false"),
    ("templatefile(\"greet.tftpl\", { names = [\"a\", \"b\"] })", "\"hi a hi b \""),
    ("templatefile(\"greet.tftpl\", {})", "\\\"names\\\" is not available here"),
    ("templatefile(\"again.tftpl\", {})", "a template cannot render another template"),
    ("try(local.none.a, \"b\")", "\"b\""),
    ("try({ a = 1 }.b, {}.c, 3)", "3"),
    ("[for x in [{ a = 1 }, {}] : try(x.a, 0)]", "[1,0]"),
    ("can({}.a)", "false"),
    ("can(1 + 1)", "true"),
    ("env(\"HOME_TOWN\")", "\"Bremen\""),
    ("env(\"NOWHERE\", \"x\")", "\"x\""),
    ("env(\"NOWHERE\")", "the environment variable \"NOWHERE\" is not set"),
    ("secret(\"token\")", "\"s3cr3t\""),
    ("secret(\"other\")", "there is no secret named \"other\""),
    ("path.config", "\"/conf\""),
    ("\"5\" + 1", "6"),
    ("\"5\" > 3", "true"),
    ("false && local.none.a", "false"),
    ("true || local.none.a", "true"),
    ("9223372036854775807 + 9223372036854775807", "18446744073709551614"),
    ("18446744073709551615 + 1", "1.8446744073709552e+19"),
    ("1e308 * 1e308", "not a finite number"),
    ("5 % 0", "divided by zero"),
    ("-9223372036854775807 - 1", "-9223372036854775808"),
    ("nothing(1)", "There is no function named \"nothing\""),
    ("lower(\"a\", \"b\")", "takes 1 arguments, not 2"),
];

fn read(path: &Path) -> Result<String, FileReadError> {
    match path.to_str() {
        Some("/conf/hello.txt") => Ok("hello\n".to_owned()),
        Some("/conf/greet.tftpl") => Ok("%{ for n in names }hi ${n} %{ endfor }".to_owned()),
        Some("/conf/again.tftpl") => Ok("${templatefile(\"greet.tftpl\", {})}".to_owned()),
        _ => Err("no such file".into()),
    }
}

fn evaluate(call: &str) -> Result<String, String> {
    let pair = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let inputs = Inputs {
        env: pair("HOME_TOWN", "Bremen"),
        secrets: pair("token", "s3cr3t"),
        dir: PathBuf::from("/conf"),
        read: &read,
        ..Inputs::default()
    };
    let text = format!(
        "cluster \"demo\" {{\n  simulated {{}}\n}}\nlocals {{\n  none = null\n}}\npool \"p\" {{\n  \
         annotations = {{ value = jsonencode({call}) }}\n}}\n"
    );
    match load(&[SourceFile::new("main.hcl", text)], &inputs) {
        Ok(config) => Ok(config.clusters[0].pools[0].annotations["value"].clone()),
        Err(problems) => Err(render_all(&problems)),
    }
}

#[test]
fn functions_behave_as_in_terraform() {
    for (call, expect) in CASES {
        match evaluate(call) {
            Ok(got) => assert_eq!(got, *expect, "{call}"),
            Err(text) => {
                let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let expect = expect.replace("\\\"", "\"");
                assert!(flat.contains(&expect), "{call}\n{text}");
            }
        }
    }
}

#[test]
fn yamldecode_accepts_at_most_64_nested_collections() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
        let nested = |depth: usize| {
            let (open, close) = (open.repeat(depth), close.repeat(depth));
            evaluate(&format!("try(length(yamldecode(\"{open}1{close}\")), 0)"))
        };
        assert_eq!(nested(64).as_deref(), Ok("1"), "{open}");
        assert_eq!(nested(65).as_deref(), Ok("0"), "{open}");
    }
    let refusal = evaluate(&format!("yamldecode(\"{}\")", "- ".repeat(65))).unwrap_err();
    let flat = refusal.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("more than 64 nested levels"), "{refusal}");
}

#[test]
fn every_function_has_a_test_case() {
    let named: BTreeSet<&str> =
        CASES.iter().filter_map(|(call, _)| call.split('(').next()).collect();
    let missing: Vec<&str> =
        function_names().into_iter().filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}
