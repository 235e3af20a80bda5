"""The style of a card: the colours of JupyterLab's theme where it has one, else of the browser's light or dark."""

STYLE = """
.rxllm{--fg:var(--jp-content-font-color1,#1f2328);--dim:var(--jp-content-font-color2,#59636e);
--line:var(--jp-border-color2,#d1d9e0);--soft:var(--jp-layout-color2,#f3f4f6);--blue:var(--jp-brand-color1,#0969da);
--red:var(--jp-error-color1,#cf222e);--green:var(--jp-success-color1,#1a7f37);--amber:var(--jp-warn-color1,#9a6700);
display:flex;flex-wrap:wrap;gap:12px;color:var(--fg);font-size:14px;line-height:1.5;margin:4px 0}
@media (prefers-color-scheme:dark){.rxllm{--fg:var(--jp-content-font-color1,#e6edf3);
--dim:var(--jp-content-font-color2,#9198a1);--line:var(--jp-border-color2,#3d444d);
--soft:var(--jp-layout-color2,#212830);--blue:var(--jp-brand-color1,#4493f8);--red:var(--jp-error-color1,#f85149);
--green:var(--jp-success-color1,#3fb950);--amber:var(--jp-warn-color1,#d29922)}}
.rxllm article{flex:1 1 260px;min-width:0;max-width:900px;border:1px solid var(--line);border-radius:6px;
padding:8px 12px;overflow-wrap:anywhere}
.rxllm header{font-weight:600;border-bottom:1px solid var(--line);margin-bottom:8px;padding-bottom:4px}
.rxllm footer,.rxllm-note,.rxllm-source,:is(.rxllm-tool,.rxllm-error,.rxllm-words) span{color:var(--dim);font-size:12px}
.rxllm footer{margin-top:6px}
.rxllm footer::before{content:"";display:inline-block;width:8px;height:8px;border-radius:4px;margin-right:6px;
background:var(--green)}
.rxllm [data-state=running]>footer::before{background:var(--blue)}
.rxllm :is([data-state=waiting],[data-state=stopped])>footer::before{background:var(--amber)}
.rxllm [data-state=failed]>footer::before{background:var(--red)}
.rxllm.rxllm article :is(pre,code){font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:13px;
color:var(--fg);background:var(--soft);border-radius:4px}
.rxllm.rxllm article code{padding:1px 4px}
.rxllm.rxllm article pre{margin:6px 0;padding:6px 8px;max-height:320px;overflow:auto;white-space:pre-wrap}
.rxllm.rxllm article pre code{padding:0}
.rxllm.rxllm article a{color:var(--blue)}
.rxllm.rxllm article :is(p,ul,ol){margin:0 0 8px}
.rxllm.rxllm article :is(h1,h2,h3,h4,h5,h6){font-size:1.1em;margin:8px 0 4px;line-height:1.3}
.rxllm.rxllm article table{border-collapse:collapse;margin:6px 0;display:block;overflow-x:auto}
.rxllm.rxllm article :is(th,td){border:1px solid var(--line);padding:2px 8px;text-align:start}
.rxllm.rxllm article blockquote{margin:0 0 8px;padding-left:10px;border-left:3px solid var(--line);color:var(--dim)}
.rxllm details{color:var(--dim);margin:4px 0}
.rxllm details>div{border-left:2px solid var(--line);padding-left:10px;max-height:320px;overflow:auto}
.rxllm [data-state=running]>details[open]>div{max-height:160px;display:flex;flex-direction:column-reverse}
.rxllm summary{cursor:pointer;font-size:12px}
.rxllm.rxllm article .rxllm-tool code{white-space:normal}
.rxllm-tool{border-left:3px solid var(--green);padding:2px 0 2px 8px;margin:6px 0}
.rxllm-tool:is([data-state=arguments],[data-state=running],[data-state=called]){border-color:var(--blue)}
.rxllm-tool:is([data-state=waiting],[data-state=needed],[data-state=stopped]){border-color:var(--amber)}
.rxllm-tool[data-state=failed]{border-color:var(--red)}
.rxllm-agent{margin:4px 0 0 8px}
.rxllm-words{width:fit-content;max-width:80%;margin:8px 0 8px auto;padding:4px 10px;border-radius:6px;
background:var(--soft);white-space:pre-wrap}
.rxllm-words span{margin-left:8px}
.rxllm-error{border-left:3px solid var(--red);padding:2px 0 2px 8px;margin:6px 0}
.rxllm-error b{color:var(--red)}
.rxllm-tool .rxllm-error{border:0;padding:0}
.rxllm.rxllm article img{max-width:100%;max-height:480px;border-radius:4px}
""".strip().replace("\n", "")
