// Prints the installed version of each dependency.
import { readFileSync } from "node:fs";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8")).version;
console.log(JSON.stringify(Object.fromEntries(Object.keys(dependencies).map((name) => [name, version(name)]))));
