"""Holds the Terraform files to the house's rules, as far as their text shows them.

    structure.py DIRECTORY

Every difference is a line. Files are read as `terraform fmt` lays them out, so it must have passed.
It must not know what a module is for.
"""

import pathlib
import re
import sys

FILES = {"README.md", "main.tf", "outputs.tf", "variables.tf", "versions.tf"}
# This one has a file for each document in place of `main.tf`.
DOCUMENTS = "render"
BLOCK = re.compile(r'^(\w+)((?: "[^"\n]+")*) \{(?:\}|\n(.*?)^\})', re.MULTILINE | re.DOTALL)
# What a module block says beside the inputs of its module.
META = {"source", "version", "providers", "for_each", "count", "depends_on"}
WIDTH = 100
# Types that a table of a README does not spell out.
SHORT = {"map(object": "map of objects", "list(object": "list of objects"}
# A cluster's name, as a module's caller and as a node class say it.
NAME = re.compile(r"\b(?:each\.key|var\.cluster_name)\b")


def blocks(text):
    """All blocks of the top level: kind, labels, body."""
    for kind, labels, body in BLOCK.findall(text):
        yield kind, re.findall(r'"([^"]+)"', labels), body


def arguments(body):
    """The arguments of a block by name; of those over several lines the first line."""
    return dict(re.findall(r"^  (\w+)\s*= (.*)$", body, re.MULTILINE))


def spread(body, argument):
    """The text of an argument over several lines."""
    ends = r"(?=^  \w|^  \}$|\Z)"
    found = re.search(rf"^  {argument}\s*= (.*?){ends}", body, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def fields(text, depth):
    """The names on the left in a text, as far within it."""
    return set(re.findall(rf"^{'  ' * depth}(\w+)\s*=(?![=>])", text, re.MULTILINE))


class Module:
    """A folder with files of Terraform."""

    def __init__(self, path):
        self.path = path
        self.texts = {own: own.read_text() for own in sorted(path.glob("*.tf"))}
        self.text = "\n".join(self.texts.values())
        self.blocks = list(blocks(self.text))
        self.inputs = self.named("variable")
        self.bodies = {labels[0]: body for kind, labels, body in self.blocks if kind == "variable"}
        self.outputs = self.named("output")

    def named(self, kind):
        return {labels[0]: arguments(body) for own, labels, body in self.blocks if own == kind}

    def code(self):
        """Its text without comments and what is quoted in words, and with the files it renders."""
        templates = "".join(own.read_text() for own in sorted(self.path.glob("*.tftpl")))
        text = re.sub(r"^\s*#.*$", "", self.text, flags=re.MULTILINE)
        return re.sub(r"`[^`\n]*`", "", text) + templates


def faults(module, others, is_example):
    """What is wrong with a module."""
    path = module.path
    names = {own.name for own in path.iterdir()}
    for name in sorted(FILES - names - ({"main.tf"} if path.name == DOCUMENTS else set())):
        yield f"{path} has no {name}"
    if 'required_version = ">= 1.5.7"' not in module.text:
        yield f"{path} does not say which versions of Terraform it is for"
    for own, text in module.texts.items():
        if re.search(r"arn:aws[:-]", text):
            yield f"{own} names a partition in an ARN"
        for kind, labels, body in blocks(text):
            if kind == "provider" and not is_example:
                yield f"{own} has a provider block, which is its caller's to write"
            # Such data waits for all resources: who goes by the module then waits for himself.
            if kind == "check" and re.search(r"^ *data ", body, re.MULTILINE):
                yield f"{own} has data within the check {labels[0]}"
            home = {"variable": "variables.tf", "output": "outputs.tf", "terraform": "versions.tf"}
            if kind in home and own.name != home[kind]:
                yield f"{own} has a {kind} block, which belongs in {home[kind]}"
    for name, own in module.inputs.items():
        for argument in ("type", "description"):
            if own.get(argument, '""') == '""':
                yield f"{path}: variable {name} has no {argument}"
    for name, own in module.outputs.items():
        if own.get("description", '""') == '""':
            yield f"{path}: output {name} has no description"
    yield from references(module)
    yield from calls(module, others)
    yield from tables(module)
    if is_example:
        yield from found(module)
    else:
        yield from validated(module, others)


def references(module):
    """Names that nothing has, and names that nobody uses: what `validate` would say without the
    provider it needs."""
    code = module.code()
    locals_ = set()
    for kind, _, body in module.blocks:
        if kind == "locals":
            locals_ |= set(arguments(body))
    for word, known in (("var", set(module.inputs)), ("local", locals_)):
        used = set(re.findall(rf"\b{word}\.(\w+)", code))
        for name in sorted(used - known):
            yield f"{module.path}: {word}.{name} is not declared"
        for name in sorted(known - used):
            yield f"{module.path}: {word}.{name} is never used"
    known = {
        (labels[0], labels[1]) for kind, labels, _ in module.blocks if kind == "resource"
    }
    for kind, name in sorted(set(re.findall(r"(?<!data\.)\b(aws_\w+)\.(\w+)", code)) - known):
        if not re.search(rf'data "{kind}" "{name}"', module.text):
            yield f"{module.path}: there is no {kind}.{name}"


def calls(module, others):
    """Modules that are called with what they do not take, or without what they need."""
    code = module.code()
    for kind, labels, body in module.blocks:
        if kind != "module":
            continue
        given = arguments(body)
        target = (module.path / given.get("source", "").strip('"')).resolve()
        called = others.get(target)
        if called is None:
            yield f"{module.path}: module {labels[0]} is none of ours"
            continue
        given = set(given) - META
        needed = {name for name, own in called.inputs.items() if "default" not in own}
        for name in sorted(given - set(called.inputs)):
            yield f"{module.path}: module {labels[0]} has no variable {name}"
        for name in sorted(needed - given):
            yield f"{module.path}: module {labels[0]} is not given {name}"
        # Terraform drops what a type does not have, and says nothing.
        for name in sorted(given & set(called.inputs)):
            known = fields(spread(called.bodies[name], "type"), 2)
            # Those of each element.
            unknown = fields(spread(body, name), 3) - known
            for field in sorted(unknown if known else set()):
                yield f"{module.path}: {name} of module {labels[0]} has no {field}"
        keys = spread(body, "regions")
        if "queue_arns" in keys and "queue_key_arns" not in keys:
            yield f"{module.path}: module {labels[0]} is told of queues and not of their keys"
        for name in sorted(set(re.findall(rf"\bmodule\.{labels[0]}(?:\[[^]]+\])?\.(\w+)", code))):
            if name not in called.outputs:
                yield f"{module.path}: module {labels[0]} has no output {name}"


def validated(module, others):
    """ARNs that are taken as they come, here and by whom they are given to."""
    for name, body in module.bodies.items():
        if not name.endswith(("_arn", "_arns")) or "  validation {" in body:
            continue
        for kind, _, call in module.blocks:
            given = arguments(call)
            called = others.get((module.path / given.get("source", "").strip('"')).resolve())
            if kind == "module" and called and given.get(name) == f"var.{name}":
                if "  validation {" in called.bodies.get(name, ""):
                    break
        else:
            yield f"{module.path}: nothing says what {name} may be"


def found(module):
    """What the node classes of an example look for, and nothing says that it is there."""
    path = module.path
    if "clusters" not in module.outputs:
        yield f"{path} does not say what is known of its clusters"
    for own in sorted(path.glob("*.hcl")):
        if f'file("${{path.module}}/{own.name}")' not in module.text:
            yield f"{own} is not given to the host"
    if "aws_ssm_parameter" in module.code() and "ssm_path" not in module.code():
        yield f"{path} writes a parameter that nobody reads"
    classes = (path / "pools.hcl").read_text()
    terms = r"^  (subnet|security_group) \{ tags = \{ (.*) \} \}$"
    wanted = re.findall(terms, classes, re.MULTILINE)
    if {kind for kind, _ in wanted} != {"subnet", "security_group"}:
        yield f"{path}: node classes look for no subnets or security groups by one tag"
    for kind, labels, body in module.blocks:
        given = arguments(body)
        if kind != "module" or not given.get("source", "").endswith('/cluster"'):
            continue
        there = NAME.sub("NAME", given.get("discovery_tags", "")).strip("{ }")
        for what, tag in wanted:
            if NAME.sub("NAME", tag) != there:
                yield f"{path}: node classes look for a {what} with {tag}, which nothing is to have"
        made = "tag_subnet_ids" in given, given.get("tag_security_group") == "true"
        word = there.split("/")[0].strip('"') + "/discovery"
        if len(set(made)) > 1 or word not in (path / "README.md").read_text():
            yield f"{path}: not everything is tagged, or its README does not say who does"


def tables(module):
    """A README whose tables list something else than there is."""
    readme = module.path / "README.md"
    if not readme.exists():
        return
    text = readme.read_text()
    for title, known in (("Inputs", module.inputs), ("Outputs", module.outputs)):
        part = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", part[1] if part else "", re.MULTILINE)
        if [name for name, _ in rows] != list(known):
            yield f"{readme}: the table {title!r} lists something else than there is"
            continue
        for name, row in rows:
            said = known[name].get("description", "").strip('"').replace('\\"', '"')
            if not row.endswith(said):
                yield f"{readme}: {name} is described otherwise than in the module"
            if title == "Inputs":
                type_, default, _ = row.split(" | ", 2)
                wanted = known[name].get("type", "")
                wanted = SHORT.get(wanted.split("({")[0], f"`{wanted}`")
                if type_ != wanted:
                    yield f"{readme}: {name} is of another type"
                if default != f"`{known[name].get('default')}`" and "default" in known[name]:
                    yield f"{readme}: {name} has another default"
            required = "**required**" in row
            if title == "Inputs" and required != ("default" not in known[name]):
                yield f"{readme}: {name} is required there or in the module, but not in both"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not line.startswith("|"):
            yield f"{readme}:{number} has {len(line)} columns"


def main(directory):
    root = pathlib.Path(directory)
    found = [Module(own) for own in sorted(root.glob("*/*")) if own.is_dir()]
    others = {own.path.resolve(): own for own in found}
    wrong = [
        fault for own in found for fault in faults(own, others, own.path.parent.name == "examples")
    ]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
